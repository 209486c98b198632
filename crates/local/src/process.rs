//! Child processes that never outlive the local world.

use std::path::Path;

use tokio::process::{Child, Command};

/// Makes a command's process lead its own group, die with the thread that starts it (Linux; a worker of
/// the runtime lives as long as the world), and be killed when its handle is dropped.
pub fn tie(command: &mut Command) -> &mut Command {
    command.kill_on_drop(true).process_group(0);
    #[cfg(target_os = "linux")]
    // SAFETY: prctl is a plain system call, allowed between fork and exec, and touches no memory.
    #[allow(unsafe_code, reason = "the standard library offers no parent-death signal")]
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

/// Makes a command's process start in a control group; `procs` is the group's `cgroup.procs`.
#[cfg(unix)]
pub fn confine<'a>(command: &'a mut Command, procs: &Path) -> &'a mut Command {
    let procs = procs.to_owned();
    // SAFETY: opening and writing a file are plain system calls; the path was made before the fork, and a path of
    // this length is copied to the stack, not to the heap.
    #[allow(
        unsafe_code,
        reason = "a process is in its group before its program starts only by this"
    )]
    unsafe {
        // "0" is the process that writes (cgroups(7)).
        command.pre_exec(move || std::fs::write(&procs, "0"));
    }
    command
}

/// Kills a process started after [`tie`] together with all that it started in its group.
pub fn kill_group(child: &Child) {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // SAFETY: a plain system call; the child is not reaped yet, so the group is still its own.
        #[allow(unsafe_code, reason = "the standard library signals single processes only")]
        unsafe {
            libc::kill(-id, libc::SIGKILL);
        }
    }
}
