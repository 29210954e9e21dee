package netdev

import "time"

const (
	// pollUsual is how long, in ns, pauses usually are at most for a worker to look
	// through them: about what going to sleep and being woken costs it and the
	// driver, and that much longer pauses are that it sleeps through. pollMost is
	// after how long it gives up.
	pollUsual = int64(100 * time.Microsecond)
	pollMost  = int64(150 * time.Microsecond)
	// pollMemory is over how many pauses their usual length is averaged.
	pollMemory = 8
	// pollFailed is the most pauses that are not looked through after one was, in
	// vain.
	pollFailed = 1024
)

// poller decides whether a worker that has run out of work goes on looking for
// some (busy polling) or sleeps. Looking pays if the next work comes sooner than a
// sleep takes, so it is done only while pauses are usually no longer than that.
// A pause can be long because the worker looks, if it has its processor from whoever
// makes the work; so after each time in vain it sleeps at once for twice as many
// pauses as after the last one.
type poller struct {
	// since is when the worker ran out of work, 0 while it has some, and usual how
	// long that usually lasts.
	since, usual int64
	// looks: this pause is one to look through.
	looks bool
	// skip is how many pauses are left to sleep through, failed how many it will be
	// next time.
	skip, failed int
}

// worked: there was work.
func (p *poller) worked(now int64) {
	if p.since == 0 {
		return
	}
	took := now - p.since
	p.usual += (min(took, 8*pollMost) - p.usual) / pollMemory
	if p.looks {
		p.failed = 0
	}
	p.since, p.looks = 0, false
}

// idle: there is no work. It reports whether to look again at once.
func (p *poller) idle(now int64) bool {
	if p.since == 0 {
		p.since = now
		if p.looks = p.skip == 0 && p.usual <= pollUsual; p.skip > 0 {
			p.skip--
		}
	}
	if p.looks && now-p.since >= pollMost {
		p.failed = min(2*p.failed+1, pollFailed)
		p.looks, p.skip = false, p.failed
	}
	return p.looks
}
