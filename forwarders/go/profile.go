package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/pprof"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// profiled calls f with a CPU profile, and writes the profile to the file as folded stacks.
func profiled(file string, f func() error) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("create the profile: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var samples bytes.Buffer
	if err := pprof.StartCPUProfile(&samples); err != nil {
		return fmt.Errorf("start the profile: %w", err)
	}
	result := f()
	pprof.StopCPUProfile()
	if result != nil {
		return result
	}
	parsed, err := profile.Parse(&samples)
	if err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	if err := fold(parsed, out); err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	return nil
}

// fold writes a line for each different stack: its functions, the outermost first, separated by semicolons, then a
// space and the number of samples.
func fold(samples *profile.Profile, out io.Writer) error {
	count := map[string]int64{}
	for _, sample := range samples.Sample {
		count[stack(sample)] += sample.Value[0]
	}
	lines := bufio.NewWriter(out)
	for _, stack := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintln(lines, stack, count[stack])
	}
	return lines.Flush()
}

func stack(sample *profile.Sample) string {
	var frames []string
	for _, location := range slices.Backward(sample.Location) {
		for _, line := range slices.Backward(location.Line) {
			if line.Function != nil {
				frames = append(frames, line.Function.Name)
			}
		}
	}
	if len(frames) == 0 {
		return "[unknown]"
	}
	return strings.Join(frames, ";")
}
