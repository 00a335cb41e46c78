package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

func TestStacksAreFoldedFromTheOutermostInwards(t *testing.T) {
	function := func(name string) profile.Line { return profile.Line{Function: &profile.Function{Name: name}} }
	outer := &profile.Location{Line: []profile.Line{function("main")}}
	// The innermost of what was inlined comes first.
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
		busy(500 * time.Millisecond)
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

//go:noinline
func busy(spent time.Duration) {
	for end := time.Now().Add(spent); time.Now().Before(end); {
	}
}
