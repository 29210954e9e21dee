package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"

	"github.com/alecthomas/kong"
)

// options are the command line.
type options struct {
	Quick    bool              `help:"One launch with three short windows: to see that it works, not to compare."`
	Rows     string            `help:"Only rows whose name matches, as in the table: 'built-in/echo/64/virtio-user'." placeholder:"REGEXP"`
	Out      string            `help:"Folder for bench.json, bench.md and bench.svg; the table goes to standard output in any case." default:"bench/results" placeholder:"DIR"`
	Launches int               `help:"How often the processes of a row are started." default:"3"`
	Windows  int               `help:"Measurements of each back-end in a launch." default:"7"`
	Duration time.Duration     `help:"How long each takes." default:"400ms"`
	WarmUp   time.Duration     `help:"How long traffic runs before each." default:"100ms"`
	Tries    int               `help:"How often a window is measured for want of one in which no other program takes a core." default:"4"`
	Vhostnet map[string]string `help:"Measure these programs instead of one built from this tree." placeholder:"NAME=PATH"`
	Cores    []int             `help:"The front-end's processor and the back-end's." default:"0,1"`
	Nice     int               `help:"Priority of front-ends and back-ends, -20 (highest) to 19; higher than 0 keeps other programs of the machine away." default:"0"`
	NoPeers  bool              `help:"Measure vhostnet alone, with the embedded driver."`
}

// commands are what the program can be; all but the first are its own children.
type commands struct {
	Compare options    `cmd:"" default:"withargs" help:"Compare vhostnet with other back-ends."`
	Draw    drawArgs   `cmd:"" help:"Make table and plot of an earlier comparison."`
	Growth  growthArgs `cmd:"" help:"Measure how vhostnet does with many queue pairs, devices and buffers, and how long a round trip takes."`

	Drive driveArgs   `cmd:"" hidden:"" help:"Be a front-end."`
	Serve serveArgs   `cmd:"" hidden:"" help:"Be a back-end whose port copies what it drops."`
	Bare  bareArgs    `cmd:"" hidden:"" help:"Be a loop on a TAP."`
	Hold  holdArgs    `cmd:"" hidden:"" help:"Be drivers that do nothing."`
	Load  loadCommand `cmd:"" hidden:"" help:"Be a driver, once."`
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("bench"), kong.Description("vhostnet and other vhost-user back-ends with the same front-ends."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := k.Run(&streams{ctx, os.Stdin, os.Stdout, os.Stderr})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// streams are what a command works with.
type streams struct {
	ctx      context.Context
	in       io.Reader
	out, err io.Writer
}

// Run compares.
func (o *options) Run(s *streams) (err error) {
	rows, err := o.check()
	if err != nil {
		return err
	}
	st, err := newStarter(s.ctx, o, s.err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	r := newReport(o, st.notes)
	r.PeerVersions = st.versions()
	c := &comparison{o: o, open: st.open, progress: s.err, report: r}
	if err := c.run(s.ctx, st.possible(rows)); err != nil {
		return err
	}
	r.finish()
	if err := r.markdown(s.out); err != nil {
		return err
	}
	if err := r.save(o.Out); err != nil {
		return err
	}
	return r.failed()
}

// check returns the rows to measure.
func (o *options) check() ([]row, error) {
	if o.Quick {
		o.Launches, o.Windows, o.Tries, o.Duration, o.WarmUp = 1, 3, 1, 200*time.Millisecond, 50*time.Millisecond
	}
	if o.Launches < 1 || o.Windows < 1 || o.Tries < 1 || o.Duration <= 0 {
		return nil, fmt.Errorf("%d launches of %d windows of %v, %d tries: want at least one of some length",
			o.Launches, o.Windows, o.Duration, o.Tries)
	}
	if len(o.Cores) != 2 || o.Cores[0] < 0 || o.Cores[1] < 0 {
		return nil, fmt.Errorf("cores %v: want two numbers, or one twice", o.Cores)
	}
	which, err := regexp.Compile(o.Rows)
	if err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	var rows []row
	for _, r := range allRows() {
		if which.MatchString(r.String()) {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no row matches %q", o.Rows)
	}
	return rows, nil
}
