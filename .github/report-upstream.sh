#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Opens an issue with the report on the newest release of upstream, unless there is one. Needs gh with a token.
set -euo pipefail
cd "$(dirname "$0")/.."

newest=$(python -m fork newest)
if [[ -z $newest ]]; then
  echo "upstream has nothing newer"
  exit 0
fi
title="Upstream $newest"
if [[ -n $(gh issue list --state all --limit 200 --json title --jq ".[].title | select(. == \"$title\")") ]]; then
  echo "$title was reported before"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
python -m fork rebase --to "$newest" --brief > "$work/report" || status=$?
if ((status > 1)); then # not a report, but a mistake or something missing
  cat "$work/report"
  exit "$status"
fi
{
  echo "\`make rebase TO=$newest WRITE=1\` moves the fork once nothing below fails; without \`WRITE=1\` it shows upstream's changes too."
  echo
  echo '```'
  head --bytes=60000 "$work/report" # an issue holds 65,536 characters
  echo '```'
} > "$work/body"
gh issue create --title "$title" --body-file "$work/body"
