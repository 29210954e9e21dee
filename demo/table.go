package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/vhostnet/vhostnet/driver"
)

// table shows the steps as text, one row each.
type table struct {
	w    io.Writer
	live bool
	// drawn is how many rows of the current step are on the screen.
	drawn int
}

func newTable(w io.Writer, live bool) *table { return &table{w: w, live: live} }

const rowFormat = "%-16s %9s %9s %10s %10s %9s %9s %9s\n"

func (t *table) head(d *driver.Driver) {
	fmt.Fprintf(t.w, "A vhost-user device with the echo port and a virtio-net driver in one process, %d queue pairs.\n"+
		"The driver sets the limits (microseconds/frames) through the control queue. Notifications\n"+
		"are for received and for transmitted frames; rtt is that of a single frame.\n\n", d.QueuePairs())
	fmt.Fprintf(t.w, rowFormat, "step", "rx us/fr", "tx us/fr", "packets/s", "notif/s", "pkt/notif", "rtt p50", "rtt p99")
	fmt.Fprintln(t.w, strings.Repeat("-", 88))
}

// update redraws the rows of the current step.
func (t *table) update(rows []row, l *load) {
	if t.live {
		t.draw(rows, l)
	}
}

// done draws the rows for the last time.
func (t *table) done(rows []row, l *load) {
	t.draw(rows, l)
	t.drawn = 0
}

func (t *table) draw(rows []row, l *load) {
	if t.drawn > 0 {
		fmt.Fprintf(t.w, "\x1b[%dA\x1b[J", t.drawn)
	}
	for i := range rows {
		s := rows[i].step(l)
		seconds := l.flows[rows[i].members[0]].elapsed.Seconds()
		per := "-"
		if s.Notifications > 0 {
			per = fmt.Sprintf("%.1f", float64(s.Packets)/float64(s.Notifications))
		}
		fmt.Fprintf(t.w, rowFormat, s.Name,
			fmt.Sprintf("%d/%d", s.RXUsecs, s.RXFrames), fmt.Sprintf("%d/%d", s.TXUsecs, s.TXFrames),
			perSecond(s.Packets, seconds), perSecond(s.Notifications, seconds), per,
			fmt.Sprintf("%.1f us", s.RTTP50), fmt.Sprintf("%.1f us", s.RTTP99))
	}
	t.drawn = len(rows)
}

func perSecond(n uint64, seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(n)/seconds)
}

// foot says in a sentence what the rows have shown.
func (t *table) foot(steps []Step) {
	best := 0
	for i := range steps {
		if steps[i].NotificationsPerPacket < steps[best].NotificationsPerPacket {
			best = i
		}
	}
	if off, b := steps[0], steps[best]; best > 0 && b.NotificationsPerPacket > 0 {
		fmt.Fprintf(t.w, "\n%q needs %.1f times fewer notifications per packet than %q; a single frame takes %.0f us longer.\n",
			b.Name, off.NotificationsPerPacket/b.NotificationsPerPacket, off.Name, b.RTTP50-off.RTTP50)
	}
}
