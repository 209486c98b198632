#!/bin/bash
# What every instance does: claim a runner's JIT configuration, run one job, power off. Constant user data.
#
#   (no argument)      cloud-init, once: installs the units below, so that systemd owns the rest
#   job                the service: identity, runner, claim, run
#   off [reason]       after the service however it ended, and at the lifetime's end: say why, power off
#   report             the job-started hook's part, as the job's user
#
# Needs bash 4.4, curl, tar, util-linux, and coreutils or openssl for the hashes. Nothing may leave the machine
# on: every stage ends in an EXIT trap, systemd powers off if a stage is killed, and a timer if one hangs.
# OSTLER_ROOT is a seam for tests: it stands in front of every path written.
#
# The last word goes to the log group as {"ostler":"ended","reason":…,"days":…}; the days are the runner's age since its
# release was built, by which GitHub is going to refuse it, or -1. The reason is one of: done, no-job,
# rebooted, max-lifetime, stopped, killed-<systemd's result>, no-metadata, no-credentials, no-user,
# no-handoff, bad-handoff, delete-unconfirmed, runner-download, runner-checksum, runner-unpack,
# runner-deprecated (raise RunnerVersion), runner-failed, runner-exit-<code>, bootstrap-failed.
# --- rendered ---
OSTLER_REGION=${OSTLER_REGION-}
OSTLER_ROLE_ID=${OSTLER_ROLE_ID-}
OSTLER_HANDOFF_TABLE=${OSTLER_HANDOFF_TABLE-}
OSTLER_LOG_GROUP=${OSTLER_LOG_GROUP-}
OSTLER_RUNNER_VERSION=${OSTLER_RUNNER_VERSION-}
OSTLER_RUNNER_SHA256_X64=${OSTLER_RUNNER_SHA256_X64-}
OSTLER_RUNNER_SHA256_ARM64=${OSTLER_RUNNER_SHA256_ARM64-}
OSTLER_RUNNER_URL=${OSTLER_RUNNER_URL-}
# --- rendered ---
set -u
umask 022
# For this script; the job has its own.
LC_ALL=C
export -n LC_ALL
root=${OSTLER_ROOT-}
# This script and the hook; the job's user reads them.
lib=$root/opt/ostler
# The first survives a reboot, the second does not.
disk=$root/var/lib/ostler
run=$root/run/ostler
units=$root/etc/systemd/system
user=${OSTLER_RUNNER_USER:-runner}
dir=${OSTLER_RUNNER_DIR:-$root/opt/actions-runner}
# Seconds to come up in and to live, unless the instance's tags say otherwise.
boot=300 life=21600
instance='' runner='' role='' reason='' detail='' status='' answer='' scope=''
suffix=amazonaws.com
[[ $OSTLER_REGION == cn-* ]] && suffix=amazonaws.com.cn
hasher=(sha256sum)
command -v sha256sum >/dev/null || hasher=(openssl dgst -sha256 -r)

die() { reason=$1 detail=${2-}; exit 1; }

tick() { local t; t=$(date -u '+%s %Y%m%dT%H%M%SZ'); now=${t% *} stamp=${t#* }; }

# About $1 seconds (half to one and a half), so that machines started together spread out.
nap() { local ms=$(($1 * 500 + RANDOM % ($1 * 1000))) s; printf -v s '%d.%03d' $((ms / 1000)) $((ms % 1000)); sleep "$s"; }

# Every secret goes to curl and to the hashes on stdin: argv can be read by every process.

# path...: a line "<value> <status>" for each
imds() {
  local urls=() p
  for p; do urls+=("http://169.254.169.254/latest/meta-data/$p"); done
  answer=$(curl -sf --noproxy '*' -m 5 -w ' %{http_code}\n' -K - "${urls[@]}" <<<"header = \"X-aws-ec2-metadata-token: $token\"")
  [ "$answer" ]
}

# Asked for once a boot: the later stages find the answer beside the reason.
identity() {
  local v i t=tags/instance/ostler
  token=$(curl -sf --noproxy '*' -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 21600' \
    http://169.254.169.254/latest/api/token) && [ "$token" ] || return
  [ "$role" ] || read -r instance role runner 2>/dev/null <"$run/self"
  [ "$role" ] && return
  imds instance-id iam/security-credentials/ "$t:runner" "$t:boot-timeout" "$t:max-lifetime"
  mapfile -t v <<<"$answer"
  for i in 0 1 2 3 4; do
    case ${v[i]-} in *' 200') v[i]=${v[i]% 200} ;; *' 404') v[i]='' ;; *) return 1 ;; esac
  done
  [[ ${v[0]} =~ ^i-[0-9a-f]+$ ]] || return
  instance=${v[0]} role=${v[1]}
  [[ ${v[2]} =~ ^[A-Za-z0-9._-]{1,64}$ ]] && runner=${v[2]}
  [[ ${v[3]} =~ ^[1-9][0-9]{0,5}$ ]] && boot=${v[3]}
  [[ ${v[4]} =~ ^[1-9][0-9]{0,5}$ ]] && life=${v[4]}
  [ -z "$role" ] || echo "$instance $role $runner" >"$run/self"
}

# name text: the first string value of that name in a JSON text, however spaced, in REPLY
field() {
  local t=$2
  REPLY=
  [[ $t == *"\"$1\""* ]] || return
  t=${t#*"\"$1\""} t=${t#*\"}
  REPLY=${t%%\"*} REPLY=${REPLY//\\/}
  [ "$REPLY" ]
}

credentials() {
  local id secret
  [ "$role" ] || identity
  [ "$role" ] && imds "iam/security-credentials/$role" && [[ $answer == *' 200' ]] || return
  field AccessKeyId "$answer" && id=$REPLY && field SecretAccessKey "$answer" && secret=$REPLY &&
    field Token "$answer" || return
  access_key=$id secret_key=$secret session=$REPLY scope=
}

bytes() { local i; REPLY=; for ((i = 0; i < ${#1}; i += 2)); do REPLY+=\\x${1:i:2}; done; }

# escaped bytes, text: the hex hash of both together, in REPLY
sha() {
  REPLY=$("${hasher[@]}" < <(printf '%b%s' "$1" "$2"))
  REPLY=${REPLY%% *}
}

# HMAC-SHA256 of text $2 under hex key $1. By hand, because openssl takes the key in argv.
hmac() {
  local i h inner='' outer=''
  for ((i = 0; i < 128; i += 2)); do
    h=${1:i:2} h=$((16#${h:-0}))
    printf -v h '\\x%02x \\x%02x' $((h ^ 0x36)) $((h ^ 0x5c))
    inner+=${h% *} outer+=${h#* }
  done
  sha "$inner" "$2"
  bytes "$REPLY"
  sha "$outer$REPLY" ''
}

# for "$day/$region/$service/aws4_request", kept until one of them changes
signing_key() {
  local text="AWS4$secret_key" h hex='' i
  [ "$scope" = "$1" ] && return
  for ((i = 0; i < ${#text}; i++)); do printf -v h %02x "'${text:i:1}"; hex+=$h; done
  local IFS=/
  for i in $1; do hmac "$hex" "$i"; hex=$REPLY; done
  key=$hex scope=$1
}

# service, target, JSON body: a request signed for $stamp. True if answered 200; see $status and $answer.
aws() {
  local host=$1.$OSTLER_REGION.$suffix type=application/x-amz-json-1.1 text config body
  local names='content-type;host;x-amz-date;x-amz-security-token;x-amz-target'
  [ "$1" = dynamodb ] && type=application/x-amz-json-1.0
  signing_key "${stamp%T*}/$OSTLER_REGION/$1/aws4_request"
  sha '' "$3"
  printf -v text 'content-type:%s\nhost:%s\nx-amz-date:%s\nx-amz-security-token:%s\nx-amz-target:%s\n\n%s\n%s' \
    "$type" "$host" "$stamp" "$session" "$2" "$names" "$REPLY"
  sha 'POST\n/\n\n' "$text"
  printf -v text 'AWS4-HMAC-SHA256\n%s\n%s\n%s' "$stamp" "$scope" "$REPLY"
  hmac "$key" "$text"
  body=${3//\\/\\\\} body=${body//\"/\\\"}
  printf -v config 'header = "%s"\n' "Content-Type: $type" "X-Amz-Date: $stamp" "X-Amz-Security-Token: $session" \
    "X-Amz-Target: $2" "Authorization: AWS4-HMAC-SHA256 Credential=$access_key/$scope, SignedHeaders=$names, Signature=$REPLY"
  answer=$(curl -sS -m 10 --connect-timeout 5 -w '\n%{http_code}' -K - "https://$host/" <<<"${config}data-binary = \"$body\"")
  status=${answer##*$'\n'} answer=${answer%$'\n'*}
  [ "$status" = 200 ]
}

# One event of its own in the log group, so that no other output can run into it. A few tries, then never mind.
# text, and anything if it is the first
say() {
  local to text=${1//\"/\\\"} try
  to="{\"logGroupName\":\"$OSTLER_LOG_GROUP\",\"logStreamName\":\"${runner:-_}/$instance\""
  for try in 1 2 3 4; do
    tick
    [ -z "${2-}" ] || aws logs Logs_20140328.CreateLogStream "$to}"
    aws logs Logs_20140328.PutLogEvents "$to,\"logEvents\":[{\"timestamp\":${now}000,\"message\":\"$text\"}]}" && return
    [[ $answer == *ResourceNotFound* ]] && set -- "$1" new && continue
    nap "$try"
  done
  return 1
}

hurry() { local try; for try in 1 2 3; do identity && credentials && return; nap 1; done; return 1; }

off() {
  local built days=-1
  trap 'poweroff || poweroff -f' EXIT
  [ -d "$run" ] || mkdir -p "$run"
  # The other one is saying why: leave it the time.
  mkdir "$run/ended" 2>/dev/null || { sleep 20; exit; }
  [ "${1-}" ] && reason=$1
  [ "$reason" ] || read -r reason detail 2>/dev/null <"$run/reason" || reason=killed-${SERVICE_RESULT:-unknown}
  echo "ostler: power off: $reason $detail"
  tick
  # Archives may give their files no date.
  built=$(stat -c %Y "$dir/run.sh" 2>/dev/null) && ((built > 0)) && days=$(((now - built) / 86400))
  hurry && say "{\"ostler\":\"ended\",\"reason\":\"$reason\",\"detail\":\"$detail\",\"runner\":\"$runner\",\"instance\":\"$instance\",\"days\":$days}"
  exit
}

# The power goes after $life seconds whatever the job has done to the runner.
watchdog() {
  echo "[Unit]
Description=Ostler: end of this machine's lifetime
[Timer]
OnActiveSec=${life}s
AccuracySec=1s
[Install]
WantedBy=timers.target" >"$units/ostler-limit.timer" &&
    systemctl enable ostler-limit.timer && systemctl restart ostler-limit.timer
}

setup() {
  trap '(off)' EXIT
  mkdir -p "$lib" "$disk" "$run" && install -m 755 -- "$0" "$lib/bootstrap"
  mkdir -p "$units" && echo "[Unit]
Description=Ostler: one job, then power off
Wants=network-online.target
After=network-online.target
SuccessAction=poweroff
FailureAction=poweroff-force
[Service]
EnvironmentFile=-$root/etc/ostler/image.env
ExecStart=/bin/bash $lib/bootstrap job
ExecStopPost=/bin/bash $lib/bootstrap off
OOMPolicy=continue
TasksMax=infinity
TimeoutStopSec=90
StandardOutput=journal+console
[Install]
WantedBy=multi-user.target" >"$units/ostler.service" && echo "[Unit]
Description=Ostler: power off at the end of the lifetime
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/bash $lib/bootstrap off max-lifetime
TimeoutStartSec=120
StandardOutput=journal+console" >"$units/ostler-limit.service" && watchdog &&
    systemctl enable --now --no-block ostler.service && trap - EXIT && exit
  # Without systemd the same by hand.
  (job)
}

fetch() {
  local arch=x64 sum=$OSTLER_RUNNER_SHA256_X64 url try why tgz=$lib/runner.tgz
  [ -x "$dir/run.sh" ] && return
  [[ $HOSTTYPE == a*64 ]] && arch=arm64 sum=$OSTLER_RUNNER_SHA256_ARM64
  url=https://github.com/actions/runner/releases/download/v$OSTLER_RUNNER_VERSION
  url=${OSTLER_RUNNER_URL:-$url/actions-runner-linux-$arch-$OSTLER_RUNNER_VERSION.tar.gz}
  for try in 1 2 3 4 5; do
    why='runner-download'
    if curl -fsSL --proto =https --connect-timeout 10 -m 240 -o "$tgz" "$url"; then
      why='runner-checksum'
      REPLY=$("${hasher[@]}" <"$tgz")
      [ "${REPLY%% *}" = "$sum" ] && break
    fi
    tick
    ((try < 5 && now < deadline)) || die "$why"
    nap $((2 * try))
  done
  # Under another name first: a reboot half way must not leave half a runner.
  [ ! -e "$dir.new" ] || rm -rf "$dir.new"
  mkdir -p "$dir.new" && tar -xzf "$tgz" -C "$dir.new" --no-same-owner && rm "$tgz" &&
    [ -x "$dir.new/run.sh" ] && mv -T "$dir.new" "$dir"
  [ -x "$dir/run.sh" ] || die runner-unpack
  # .NET does not start without ICU unless told so; bare images have none.
  [[ $(ldconfig -p 2>/dev/null) == *libicuuc* ]] || export DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1
}

# The report of which job this runner was given, by the name it was launched with: the hook's environment may lack
# it. The runner reads .env once, at its start. A hook that fails or hangs would fail the job: ours can't. An image's
# own runs after it.
hook() {
  local line next='' set=ACTIONS_RUNNER_HOOK_JOB_STARTED h=$lib/job-started.sh
  [ "$runner" ] || return 0
  [ -f "$dir/.env" ] && while IFS= read -r line || [ "$line" ]; do
    [[ $line == "$set="* && $line != "$set=$h" ]] && next=${line#*=}
  done <"$dir/.env"
  printf '#!/bin/bash\nmkdir %q 2>/dev/null && timeout --foreground -k 1 20 /bin/bash %q report >/dev/null 2>&1 || true\n' \
    "$dir/.reported" "$lib/bootstrap" >"$h"
  if [ "$next" ]; then printf 'exec /bin/bash %q\n' "$next"; else echo 'exit 0'; fi >>"$h"
  printf '\n%s=%s\n' "$set" "$h" >>"$dir/.env"
}

report() {
  [[ ${GITHUB_REPOSITORY-} =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ && ${GITHUB_RUN_ID-} =~ ^[0-9]+$ ]] || exit
  hurry && [ "$runner" ] && say "CDKGHR JOB RUNNER=$runner REPO=$GITHUB_REPOSITORY WORKFLOW_ID=$GITHUB_RUN_ID" new
}

# Read, delete, and go on only once the delete is confirmed: each can be repeated, and the job finds nothing.
claim() {
  local item pause=0
  item="{\"TableName\":\"$OSTLER_HANDOFF_TABLE\",\"Key\":{\"pk\":{\"S\":\"$OSTLER_ROLE_ID:$instance\"}}"
  tick
  until aws dynamodb DynamoDB_20120810.GetItem "$item,\"ConsistentRead\":true}" && [[ $answer == *'"jit"'* ]]; do
    ((now < deadline)) || die no-handoff "$status"
    [ "$status" = 200 ] || credentials
    nap $((pause < 5 ? ++pause : pause))
    tick
  done
  field S "${answer#*'"jit"'}"
  jit=$REPLY
  [[ $jit && $jit != *[!A-Za-z0-9+/=]* ]] || die bad-handoff
  : >"$disk/used" || die bootstrap-failed
  until aws dynamodb DynamoDB_20120810.DeleteItem "$item}"; do
    ((now < deadline)) || die delete-unconfirmed "$status"
    credentials
    nap 1
    tick
  done
}

job() {
  local home log=$root/var/log/ostler-runner.log code text
  trap '[ -s "$run/reason" ] || echo "${reason:-bootstrap-failed} $detail" >"$run/reason"' EXIT
  trap 'die stopped' TERM INT HUP
  [ -d "$run" ] || mkdir -p "$run"
  # A second session with the same registration is refused, and what the first left behind is not known.
  [ -e "$disk/used" ] && die rebooted
  tick
  deadline=$((now + boot)) began=$now
  until identity; do ((now < deadline)) || die no-metadata; nap 2; tick; done
  deadline=$((began + boot))
  watchdog || { (sleep "$life"; off max-lifetime) & }
  until credentials; do tick; ((now < deadline)) || die no-credentials; nap 2; done
  id -u "$user" >/dev/null 2>&1 || useradd -m -s /bin/bash "$user" || die no-user
  fetch
  [ ! -e "$dir/.reported" ] || rm -rf "$dir/.reported"
  hook
  chown -R "$user": "$dir" || die no-user
  eval "home=$root~$user"
  [ -d "$home" ] || home=$root/home/$user
  mkdir -p "$root/var/log"
  cd "$dir" || die bootstrap-failed
  claim
  # In the environment, which the runner empties of it, and only in this child's.
  ACTIONS_RUNNER_INPUT_JITCONFIG=$jit ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1 \
    HOME=$home USER=$user LOGNAME=$user runuser -u "$user" -- ./run.sh >"$log" 2>&1 </dev/null &
  unset jit answer REPLY
  wait $!
  code=$?
  # run.sh hides most of the runner's own exit codes, but says them.
  text=$(tail -c 16384 "$log")
  echo "$text"
  case $text in
    *'deprecated and cannot receive'* | *'deprecated version exit code'*) die runner-deprecated ;;
    *'terminated error'* | *'unknown error code'* | *'Session Conflict'*) die runner-failed ;;
  esac
  ((code == 0)) || die "runner-exit-$code"
  reason=no-job
  [[ $text == *'Running job: '* ]] && reason='done'
}

case ${1-} in
  job) job ;;
  off) off "${2-}" ;;
  report) report ;;
  *) setup ;;
esac
