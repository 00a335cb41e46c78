#!/usr/bin/env bash
# Runs the tests, and prints only what failed. Its last line says how many passed, and why others were skipped. Arguments are those
# of `cargo test`. All output is in target/test.log.
set -uo pipefail

cd "$(dirname "$0")/.." || exit
mkdir -p target
log=target/test.log
cargo test --workspace --locked --quiet --no-fail-fast "$@" >"$log" 2>&1
code=$?
if [[ $code -ne 0 ]]; then
    # Without a failed test, it was not built.
    { sed -n '/^failures:/,/^test result/p' "$log" | grep . || tail -n 100 "$log"; } | head -n 190
fi
awk '
    /^test result:/ { for (field = 1; field < NF; field++) {
        if ($(field + 1) == "passed;") passed += $field
        if ($(field + 1) == "failed;") failed += $field
    } }
    # A line may begin with the dots of other tests.
    match($0, /SKIP /) {
        text = substr($0, RSTART + 5)
        if (seen[text]++) next
        skipped++
        # The contract and the tests of the proxy name what a stack is known not to do.
        if (text ~ /^it::|contract|^integration::proxy::/) { known++; next }
        sub(/^[^ ]+: /, "", text)
        if (!(text in reasons)) { reasons[text]; list = list (list ? "; " : "") text }
    }
    END {
        line = passed + 0 " passed; " (failed ? failed " failed; " : "") skipped + 0 " skipped"
        if (skipped) line = line ": " known + 0 " are known limits of stacks"
        if (list) line = line ", the rest: " list
        print line
    }' "$log"
exit "$code"
