package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"
)

func TestStacksAreFoldedFromTheOutermostInwards(t *testing.T) {
	function := func(name string) profile.Line { return profile.Line{Function: &profile.Function{Name: name}} }
	outer := &profile.Location{Line: []profile.Line{function("main")}}
	// The innermost of the inlined functions comes first.
	inner := &profile.Location{Line: []profile.Line{function("inlined"), function("caller")}}
	samples := &profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{inner, outer}, Value: []int64{2, 20}},
		{Location: []*profile.Location{outer}, Value: []int64{5, 50}},
		{Location: []*profile.Location{inner, outer}, Value: []int64{1, 10}},
		{Value: []int64{4, 40}},
	}}
	var folded bytes.Buffer
	if err := fold(samples, &folded); err != nil {
		t.Fatal(err)
	}
	if folded.String() != "[unknown] 4\nmain 5\nmain;caller;inlined 3\n" {
		t.Fatalf("%q", folded.String())
	}
}

func TestABusyFunctionIsInTheProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "folded")
	err := profiled(file, func() error {
		busy(t, 1500*time.Millisecond)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	folded, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(folded), "rust-tun-perf/forward.busy") {
		t.Fatalf("%v: %s", err, folded)
	}
}

// busy uses this much CPU time, by the clock that the profile uses.
//
//go:noinline
func busy(t *testing.T, spent time.Duration) {
	now := func() time.Duration {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
			t.Fatal(err)
		}
		return time.Duration(now.Nano())
	}
	for end := now() + spent; now() < end; {
	}
}
