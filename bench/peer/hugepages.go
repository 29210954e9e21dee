package peer

import (
	"os"
	"strconv"
	"strings"
)

const (
	// hugePool says how many huge pages the machine sets aside.
	hugePool = "/proc/sys/vm/nr_hugepages"
	// hugeFree says how many of them are free, of the size that memInfo has.
	memInfo = "/proc/meminfo"
)

// hugePages is what was reserved.
type hugePages struct {
	pool string
	// before is what the machine had.
	before string
}

// reserve makes so many megabytes of huge pages free, on top of those that others
// use. It returns nil if the machine does not give them.
func reserve(megabytes int) *hugePages {
	return reserveFrom(hugePool, megabytes, func() (string, error) {
		b, err := os.ReadFile(memInfo)
		return string(b), err
	})
}

func reserveFrom(pool string, megabytes int, info func() (string, error)) *hugePages {
	old, err := os.ReadFile(pool)
	if err != nil {
		return nil
	}
	h := &hugePages{pool: pool, before: strings.TrimSpace(string(old))}
	have, err := strconv.Atoi(h.before)
	if err != nil {
		return nil
	}
	text, err := info()
	if err != nil {
		return nil
	}
	size, free := hugeInfo(text)
	if size == 0 {
		return nil
	}
	need := (megabytes<<10 + size - 1) / size
	if free >= need {
		return &hugePages{}
	}
	if os.WriteFile(pool, []byte(strconv.Itoa(have+need-free)), 0o644) != nil {
		return nil
	}
	if text, err = info(); err == nil {
		if _, free = hugeInfo(text); free >= need {
			return h
		}
	}
	_ = h.release()
	return nil
}

// hugeInfo reads the size of a huge page, in KiB, and how many are free and not
// promised to anybody.
func hugeInfo(meminfo string) (size, free int) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		switch f[0] {
		case "Hugepagesize:":
			size = n
		case "HugePages_Free:":
			free += n
		case "HugePages_Rsvd:":
			free -= n
		}
	}
	return size, free
}

// release sets the pool back to what it was.
func (h *hugePages) release() error {
	if h == nil || h.pool == "" {
		return nil
	}
	return os.WriteFile(h.pool, []byte(h.before), 0o644)
}
