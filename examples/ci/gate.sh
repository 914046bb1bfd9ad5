#!/bin/sh
# A release step for any pipeline: sh gate.sh policy.yaml a=A.npy b=B.npy
# Needs ASSAY_SERVER and ASSAY_API_KEY. An input may be what was approved last: a=baseline:prod. An
# inconclusive verdict stops the release too, and says what would decide: set ALLOW_INCONCLUSIVE=1 to
# let it pass.
set -u
policy=$1
shift
for input; do
  shift
  set -- "$@" --input "$input"
done
assay gate "$policy" "$@"
status=$?
case $status in
  1) echo "A rule of $policy is broken: do not release." >&2 ;;
  3) echo "The data cannot decide $policy: bring more groups, or look yourself." >&2
     [ "${ALLOW_INCONCLUSIVE:-0}" = 1 ] && status=0 ;;
  4) echo "There is no verdict: a check failed, or the server did not answer." >&2 ;;
esac
exit "$status"
