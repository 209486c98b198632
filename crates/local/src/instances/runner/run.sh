#!/bin/bash
# Stands for actions/runner's run.sh and run-helper.sh: runs the listener, and hides most of its exit codes.
dir=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
while :; do
  "$dir/bin/Runner.Listener" run "$@"
  code=$?
  case $code in
    0) echo "Runner listener exit with 0 return code, stop the service, no retry needed." ;;
    1) echo "Runner listener exit with terminated error, stop the service, no retry needed." ;;
    2) echo "Runner listener exit with retryable error, re-launch runner in 5 seconds."; sleep 5; continue ;;
    5) echo "Runner listener exit with Session Conflict error, stop the service, no retry needed." ;;
    7) echo "Runner listener exit with deprecated version exit code: 7." ;;
    *) echo "Exiting with unknown error code: $code" ;;
  esac
  echo "Exiting runner..."
  exit 0
done
