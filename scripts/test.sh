#!/usr/bin/env bash
# Runs the tests, and prints only what failed. Its last line says how many passed, and why others were skipped. Arguments are those
# of `cargo test`. All output is in target/test.log.
#
# Hundreds of tests at once make a small machine late, and some judge what the machine does. So tests that fail run once more, alone:
# only those that fail again fail the command, and the last line names the others.
set -uo pipefail

cd "$(dirname "$0")/.." || exit
mkdir -p target
log=target/test.log
rm -f "$log.alone"
test=(cargo test --workspace --locked --quiet --no-fail-fast)
"${test[@]}" "$@" >"$log" 2>&1
code=$?
alone=
if [[ $code -ne 0 ]]; then
    # Without a failed test, it was not built.
    { sed -n '/^failures:/,/^test result/p' "$log" | grep . || tail -n 100 "$log"; } | head -n 190
    # The last list of failures before a result has the names, and the end of the log the targets. A target of one package has
    # dependencies with other features than one of the workspace, and would be built anew.
    mapfile -t names < <(awk '
        /^failures:$/ { count = 0 }
        /^    [^ ]/ { names[++count] = substr($0, 5) }
        /^test result: FAILED/ { for (name = 1; name <= count; name++) print names[name] }' "$log")
    mapfile -t targets < <(sed -nE '/^error: [0-9]+ targets? failed:$/,$ s/^ +.(-p [^ ]+ )?(.*).$/\2/p' "$log" | sort -u)
    # Another build would be another program.
    [[ ! " $* " =~ " --features "([^ ]+) ]] || test+=(--features "${BASH_REMATCH[1]}")
    # More than a few have a common cause.
    if [[ ${#names[@]} -gt 0 && ${#names[@]} -le 5 ]]; then
        code=0
        for target in "${targets[@]}"; do
            filter=(--test-threads 1 --exact "${names[@]}")
            # Names of documents' tests have spaces, at which rustdoc splits them.
            [[ $target != --doc ]] || filter=()
            # The target is two words.
            # shellcheck disable=SC2086
            "${test[@]}" $target -- "${filter[@]}" >>"$log.alone" 2>&1 || code=$?
        done
        # A name that no test has passes, too.
        again=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$log.alone")
        [[ $again -ge ${#names[@]} ]] || code=1
        [[ $code -ne 0 ]] || alone=${names[*]}
    fi
fi
awk -v alone="$alone" '
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
        line = passed + 0 " passed; " (failed ? failed " failed" (alone ? " beside others and passed alone: " alone : "") "; " : "") skipped + 0 " skipped"
        if (skipped) line = line ": " known + 0 " are known limits of stacks"
        if (list) line = line ", the rest: " list
        print line
    }' "$log"
exit "$code"
