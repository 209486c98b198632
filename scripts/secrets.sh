#!/usr/bin/env bash
# Creates or changes Ostler's SSM parameters, of which CloudFormation can't create the secret ones:
#
#   secrets.sh [--prefix /ostler] [--private-key app.pem] [--webhook-secret FILE] [--app app.json] [--tiers tiers.json]
#   make secrets ARGS='--private-key app.pem --app app.json --tiers tiers.json'
#
#   --private-key     the GitHub App's key, a PEM file                          control/app-private-key
#   --webhook-secret  a file with the App's webhook secret, or - for stdin      control/webhook-secret
#   --app             {"app_id": 1234, "registration": "organization", …}       control/app
#   --tiers           {"tiers": [{"name": "linux-x64", …}]}                      control/tiers
#
# What is not given stays as it is. control/name-key is made at the first run and never again: runners are named by it.
# A new webhook secret moves the old one to control/webhook-secret-previous, which stays valid beside it. Functions
# read all of these again within five minutes.
#
# Secrets go from files to AWS by pipes: never printed, never in an argument, which other processes could read.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"
set +x
umask 077

prefix=/ostler private_key='' webhook_secret='' app='' tiers=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=${2-} ;;
    --private-key) private_key=${2-} ;;
    --webhook-secret) webhook_secret=${2-} ;;
    --app) app=${2-} ;;
    --tiers) tiers=${2-} ;;
    *) die "«$1» is not known; the options stand at the top of this file" ;;
  esac
  [ "${2-}" ] || die "$1 needs a value"
  shift 2
done
[[ $prefix =~ ^(/[A-Za-z0-9_.-]+)+$ ]] || die "--prefix «$prefix» is not a parameter path, like /ostler"

# The Python SDK knows only the second of the two names that this has.
[ -z "${AWS_REGION-}" ] || export AWS_DEFAULT_REGION=${AWS_DEFAULT_REGION:-$AWS_REGION}
aws() { PATH=$venv/bin:$PATH command aws "$@"; }
python() { PATH=$venv/bin:$PATH command python3 "$@"; }

# name, type, tier, overwrite (true|false), and the value on stdin, without the newline that editors leave at its end.
# Not by `aws ssm put-parameter`: it reads its input twice, so that a pipe won't do, and a file would be a copy.
put() {
  python -c '
import boto3, botocore.exceptions, sys
name, kind, tier, overwrite = sys.argv[1:]
value = sys.stdin.read().rstrip("\r\n")
if not value:
    sys.exit(f"{name}: the value is empty")
try:
    boto3.client("ssm").put_parameter(Name=name, Type=kind, Tier=tier, Overwrite=overwrite == "true", Value=value)
except botocore.exceptions.ClientError as error:
    sys.exit(f"{name}: {error}")
' "$prefix/control/$1" "$2" "$3" "$4"
}

exists() { # name. Only "not found" means no: a failed look-up never counts as absence.
  local answer
  if answer=$(aws ssm get-parameters --names "$prefix/control/$1" --query 'length(Parameters)' --output text); then
    [ "$answer" = 1 ]
  else
    die "can't look up $prefix/control/$1: check your AWS credentials and region"
  fi
}

# All that can be checked is checked before anything is written.
if [ "$private_key" ]; then
  openssl pkey -in "$private_key" -noout 2>/dev/null || die "$private_key is not a private key in PEM form"
fi
for file in "$app" "$tiers"; do
  [ -z "$file" ] || python -m json.tool "$file" >/dev/null || die "$file is not valid JSON"
done
secret=''
if [ "$webhook_secret" ]; then
  [ "$webhook_secret" = - ] && webhook_secret=/dev/stdin
  secret=$(cat "$webhook_secret")
  # An empty secret would let anyone in; a short one can be guessed from a single delivery.
  [ ${#secret} -ge 16 ] || die "the webhook secret has ${#secret} characters; at least 16 are needed"
fi

if exists name-key; then
  echo "$prefix/control/name-key: kept, as ever"
else
  openssl rand -hex 32 | put name-key SecureString Standard false
  echo "$prefix/control/name-key: made"
fi
if [ "$private_key" ]; then
  put app-private-key SecureString Standard true <"$private_key"
  echo "$prefix/control/app-private-key: written"
fi
if [ "$secret" ]; then
  if exists webhook-secret; then
    old=$(aws ssm get-parameter --name "$prefix/control/webhook-secret" --with-decryption \
      --query Parameter.Value --output text)
    if [ "$old" = "$secret" ]; then
      echo "$prefix/control/webhook-secret: the same as before"
      secret=''
    else
      put webhook-secret-previous SecureString Standard true <<<"$old"
      echo "$prefix/control/webhook-secret-previous: the secret until now"
    fi
  fi
  if [ "$secret" ]; then
    put webhook-secret SecureString Standard true <<<"$secret"
    echo "$prefix/control/webhook-secret: written"
  fi
fi
# More than 4 KB is soon needed here, and then costs; Intelligent-Tiering changes over by itself.
if [ "$app" ]; then
  put app String Intelligent-Tiering true <"$app"
  echo "$prefix/control/app: written"
fi
if [ "$tiers" ]; then
  put tiers String Intelligent-Tiering true <"$tiers"
  echo "$prefix/control/tiers: written"
fi

missing=()
for name in app app-private-key webhook-secret tiers; do
  exists "$name" || missing+=("$name")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "Still missing, and the webhook answers 503 until they are there: ${missing[*]}"
fi
