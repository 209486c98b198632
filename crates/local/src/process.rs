//! Child processes that never outlive the local world.

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
