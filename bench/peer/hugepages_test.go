package peer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestReserve: a machine with a pool of which 10 pages of 2 MiB are in use, and
// which has no more than so many pages in all.
func TestReserve(t *testing.T) {
	for _, c := range []struct {
		name         string
		pool, limit  int
		megabytes    int
		huge         bool
		during       string
		infoFails    bool
		promisedFree int
	}{
		{name: "grows", pool: 10, limit: 1000, megabytes: 100, huge: true, during: "60"},
		{name: "has enough", pool: 60, limit: 1000, megabytes: 100, huge: true, during: "60"},
		{name: "others have a claim", pool: 60, limit: 1000, megabytes: 100, huge: true, during: "65", promisedFree: 5},
		{name: "odd size", pool: 10, limit: 1000, megabytes: 101, huge: true, during: "61"},
		{name: "too little memory", pool: 10, limit: 40, megabytes: 100, during: "10"},
		{name: "no information", pool: 10, limit: 1000, megabytes: 100, during: "10", infoFails: true},
	} {
		pool := filepath.Join(t.TempDir(), "nr")
		write(t, pool, strconv.Itoa(c.pool)+"\n")
		h := reserveFrom(pool, c.megabytes, func() (string, error) {
			if c.infoFails {
				return "", errors.New("none")
			}
			n := min(read(t, pool), c.limit)
			return fmt.Sprintf("MemTotal: 5 kB\nHugePages_Total: %d\nHugePages_Free: %d\nHugePages_Rsvd: %d\nHugepagesize: 2048 kB\n",
				n, n-10, c.promisedFree), nil
		})
		if (h != nil) != c.huge || strconv.Itoa(read(t, pool)) != c.during {
			t.Errorf("%s: %v, pool %d", c.name, h, read(t, pool))
		}
		if err := h.release(); err != nil || read(t, pool) != c.pool {
			t.Errorf("%s: released: pool %d, %v", c.name, read(t, pool), err)
		}
	}
	if reserveFrom(filepath.Join(t.TempDir(), "none"), 1, nil) != nil {
		t.Error("a pool that is not there")
	}
	bad := filepath.Join(t.TempDir(), "bad")
	write(t, bad, "many")
	if reserveFrom(bad, 1, nil) != nil {
		t.Error("a pool that is no number")
	}
}

func TestHugeInfo(t *testing.T) {
	if size, free := hugeInfo("Hugepagesize: big kB\nshort\n"); size != 0 || free != 0 {
		t.Errorf("%d, %d", size, free)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
