// The forwarder carries packets between two TUN devices with wireguard-go's tun package. The forwarder in Rust is
// compared with it.
//
// The program that measures it starts it. They exchange lines of JSON. When both devices exist, the forwarder prints
// {"ready":{}} on standard output, and the other program sets the devices up. Then it reads strings from standard
// input: "start" to begin, and "report" to print its counters. It ends at the end of standard input. An error is one
// line on standard error. The exit code is then 1, or 2 for wrong arguments, or 3 if the system lacks something. With
// -version it prints the versions of Go and of its modules.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/tun"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(exitCode(err))
	}
}

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// usage is an error in the arguments.
func usage(format string, values ...any) error {
	return coded{fmt.Errorf(format, values...), 2}
}

// lacking is an error because the system lacks something, for instance a right.
func lacking(format string, values ...any) error {
	return coded{fmt.Errorf(format, values...), 3}
}

func exitCode(err error) int {
	if c := (coded{}); errors.As(err, &c) {
		return c.code
	}
	return 1
}

// options are the command line.
type options struct {
	ends
	hop     string
	mtu     int
	profile string
	version bool
}

func parse(arguments []string) (options, error) {
	var o options
	var offload string
	flags := flag.NewFlagSet("forward", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&offload, "offload", "on", "`off`, or on to split and join super-packets")
	flags.BoolVar(&o.napi, "napi", false, "have the kernel join the packets that are written (IFF_NAPI); not with -offload=on")
	flags.StringVar(&o.hop, "hop", "direct", "how a packet comes from reader to writer: direct, channel or pool")
	flags.StringVar(&o.near, "near", "", "`name` of the device in this network namespace")
	flags.StringVar(&o.far, "far", "", "`name` of the device in the other one")
	flags.StringVar(&o.farNamespace, "far-namespace", "", "that namespace, a `file` of /proc/PID/ns")
	flags.IntVar(&o.mtu, "mtu", 1500, "the larger MTU of the two devices")
	flags.StringVar(&o.profile, "profile", "", "`file` for the folded stacks of a CPU profile")
	flags.BoolVar(&o.version, "version", false, "print the versions of Go and of the modules")
	if err := flags.Parse(arguments); err != nil {
		return o, usage("%w", err)
	}
	switch {
	case flags.NArg() > 0:
		return o, usage("unexpected argument %q", flags.Arg(0))
	case !slices.Contains([]string{"off", "on"}, offload):
		return o, usage("-offload %q: it is off or on", offload)
	case o.napi && offload == "on":
		return o, usage("-napi: it is for -offload off")
	case hops[o.hop] == nil:
		return o, usage("-hop %q: it is direct, channel or pool", o.hop)
	case o.mtu < 68 || o.mtu > maxPacket:
		return o, usage("-mtu %d: it is 68 to %d", o.mtu, maxPacket)
	case o.version:
		return o, nil
	case o.near == "" || o.far == "" || o.farNamespace == "":
		return o, usage("-near, -far and -far-namespace are all needed")
	}
	o.offload = offload == "on"
	return o, nil
}

func run(arguments []string, input io.Reader, output io.Writer) error {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	if o.version {
		return printVersion(output)
	}
	near, far, err := o.create()
	if err != nil {
		return err
	}
	defer near.Close()
	defer far.Close()
	forwarder := newForwarder(near, far, o)
	if o.profile == "" {
		return forwarder.obey(input, output)
	}
	return profiled(o.profile, func() error { return forwarder.obey(input, output) })
}

func printVersion(output io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("read the versions: the program was built without modules")
	}
	_, err := fmt.Fprintln(output, versions(info))
	return err
}

// versions is one line: the version of Go, and each module by the last element of its path.
func versions(info *debug.BuildInfo) string {
	words := []string{info.GoVersion}
	for _, module := range info.Deps {
		version := module.Version
		if module.Replace != nil {
			version = cmp.Or(module.Replace.Version, "replaced")
		}
		words = append(words, path.Base(module.Path)+" "+version)
	}
	return strings.Join(words, ", ")
}

// forwarder carries packets in both directions.
type forwarder struct {
	toFar, toNear direction
	carry         func(*direction) error
	failed        chan error
}

func newForwarder(near, far tun.Device, o options) *forwarder {
	return &forwarder{
		toFar:  direction{from: near, to: far, mtu: o.mtu},
		toNear: direction{from: far, to: near, mtu: o.mtu},
		carry:  hops[o.hop],
		failed: make(chan error, 2),
	}
}

// obey executes the commands in the lines of input, until the input ends or a device fails.
func (f *forwarder) obey(input io.Reader, output io.Writer) error {
	if _, err := fmt.Fprintln(output, `{"ready":{}}`); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	orders := lines(input)
	started := false
	for {
		select {
		case err := <-f.failed:
			return err
		case order, more := <-orders:
			switch {
			case !more:
				return nil
			case order == `"start"` && !started:
				started = true
				f.start()
			case order == `"report"`:
				if err := json.NewEncoder(output).Encode(f.report()); err != nil {
					return fmt.Errorf("write to standard output: %w", err)
				}
			default:
				return fmt.Errorf("do %s: it is \"start\", once, or \"report\"", order)
			}
		}
	}
}

// lines returns a channel of the lines of input. It is closed when the input ends.
func lines(input io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(input); scanner.Scan(); {
			lines <- strings.TrimSpace(scanner.Text())
		}
	}()
	return lines
}

func (f *forwarder) start() {
	for _, d := range []*direction{&f.toFar, &f.toNear} {
		go func() { f.failed <- f.carry(d) }()
	}
}

// counts is the report of a forwarder.
type counts struct {
	ToFar  carried `json:"to_far"`
	ToNear carried `json:"to_near"`
}

// carried is the traffic of one direction: see tally.
type carried struct {
	ReadPackets    uint64 `json:"read_packets"`
	ReadBytes      uint64 `json:"read_bytes"`
	WrittenPackets uint64 `json:"written_packets"`
	WrittenBytes   uint64 `json:"written_bytes"`
	// The number of writes with a packet that the kernel refused: the package returns one error for all packets of a
	// write.
	LostPackets uint64 `json:"lost_packets"`
	// Always null: this forwarder does not count them.
	Reordered *uint64 `json:"reordered"`
}

func (f *forwarder) report() counts {
	return counts{ToFar: f.toFar.carried(), ToNear: f.toNear.carried()}
}

func (d *direction) carried() carried {
	return carried{
		ReadPackets:    d.read.packets.Load(),
		ReadBytes:      d.read.bytes.Load(),
		WrittenPackets: d.written.packets.Load(),
		LostPackets:    d.lost.Load(),
		WrittenBytes:   d.written.bytes.Load(),
	}
}
