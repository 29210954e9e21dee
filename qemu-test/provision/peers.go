package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// peersRecipe is the version of what EnsurePeers builds.
const peersRecipe = 1

// testpmdPlace is the program in Debian's dpdk-dev.
const testpmdPlace = "usr/bin/dpdk-testpmd"

// pmdPattern is where Debian has DPDK's drivers, by ABI version.
const pmdPattern = "usr/lib/x86_64-linux-gnu/dpdk/pmds-*"

// pmds are the drivers of DPDK that measurements load. What they link, like the
// bus of virtual devices, must not be loaded as a driver too: there would be two.
var pmds = []string{"librte_net_vhost", "librte_net_virtio", "librte_net_tap", "librte_mempool_ring"}

// Peers says where the back-ends and front-ends are that vhostnet is compared
// with.
type Peers struct {
	Recipe int `json:"recipe"`
	// DPDK is the prefix with testpmd and what it needs, Drivers its drivers.
	DPDK        string   `json:"dpdk"`
	Drivers     []string `json:"drivers"`
	DPDKVersion string   `json:"dpdk_version"`
	// Passt is the prefix of passt.
	Passt        string `json:"passt"`
	PasstVersion string `json:"passt_version"`
}

// EnsurePeers unpacks DPDK's testpmd and passt into the cache if they are not
// there. It needs nothing of what Ensure brings.
func EnsurePeers(ctx context.Context, o Options) (*Peers, error) {
	unlock, err := o.open()
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(o.Cache, "peers.json")
	if !o.Refresh {
		if p := loadPeers(stamp); p != nil {
			return p, nil
		}
	}
	start := time.Now()
	p, err := fillPeers(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("provision: peers: %w", err)
	}
	o.Log("peers: %.1f s", time.Since(start).Seconds())
	return p, save(stamp, p)
}

func fillPeers(ctx context.Context, o Options) (*Peers, error) {
	source, err := machineSource()
	if err != nil {
		return nil, err
	}
	stable, err := o.bookworm(ctx, source)
	if err != nil {
		return nil, err
	}
	p := &Peers{Recipe: peersRecipe, DPDK: filepath.Join(o.Cache, "dpdk"), Passt: filepath.Join(o.Cache, "passt")}
	if err := p.fillDPDK(ctx, stable); err != nil {
		return nil, err
	}
	// The passt of bookworm has no vhost-user.
	next, err := o.trixie(ctx, source)
	if err != nil {
		return nil, err
	}
	return p, p.fillPasst(ctx, next)
}

// fillDPDK unpacks the whole closure of dpdk-dev, 320 packages, and keeps of it
// testpmd, a few drivers and the libraries of both.
func (p *Peers) fillDPDK(ctx context.Context, from *apt) (err error) {
	if p.DPDKVersion, err = from.version(ctx, "dpdk-dev", "bookworm"); err != nil {
		return err
	}
	files, err := from.closure(ctx, "bookworm", "dpdk-dev")
	if err != nil {
		return err
	}
	return replaceDir(p.DPDK, func(dir string) error {
		all := filepath.Join(dir, "all")
		if err := os.Mkdir(all, 0o755); err != nil {
			return err
		}
		if err := unpack(ctx, all, files); err != nil {
			return err
		}
		if err := p.keepDPDK(all, dir); err != nil {
			return err
		}
		return os.RemoveAll(all)
	})
}

func (p *Peers) keepDPDK(all, to string) (err error) {
	p.Drivers, err = keep(all, to, p.DPDK, []string{testpmdPlace}, pmds)
	return err
}

// keep copies programs and other files of unpacked packages, drivers of DPDK, and
// the libraries of programs and drivers. It returns where the drivers will be when
// the folder to is at the place final.
func keep(all, to, final string, programs, drivers []string, others ...string) (places []string, err error) {
	const libraries = "usr/lib/x86_64-linux-gnu"
	linked, files := programs, map[string]string{}
	for _, name := range append(slices.Clone(programs), others...) {
		files[name] = filepath.Join(all, name)
	}
	for _, name := range drivers {
		found, err := filepath.Glob(filepath.Join(all, pmdPattern, name+".so.*.*"))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("there are %d drivers %s", len(found), name)
		}
		rel, err := filepath.Rel(all, found[0])
		if err != nil {
			return nil, err
		}
		linked = append(slices.Clone(linked), rel)
		files[filepath.Join(libraries, filepath.Base(rel))] = found[0]
		places = append(places, filepath.Join(final, libraries, filepath.Base(rel)))
	}
	libs, err := libraryClosure(all, linked...)
	if err != nil {
		return nil, err
	}
	for _, l := range libs {
		files[libraryPlace(l)] = l
	}
	for place, from := range files {
		target := filepath.Join(to, place)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, err
		}
		if err := copyFile(from, target); err != nil {
			return nil, err
		}
	}
	return places, nil
}

func (p *Peers) fillPasst(ctx context.Context, from *apt) (err error) {
	if p.PasstVersion, err = from.version(ctx, "passt", "trixie"); err != nil {
		return err
	}
	files, err := from.closure(ctx, "trixie", "passt")
	if err != nil {
		return err
	}
	return replaceDir(p.Passt, func(dir string) error { return unpack(ctx, dir, files) })
}

func loadPeers(stamp string) *Peers {
	raw, err := os.ReadFile(stamp)
	if err != nil {
		return nil
	}
	var p Peers
	if json.Unmarshal(raw, &p) != nil || p.Recipe != peersRecipe {
		return nil
	}
	for _, f := range append([]string{filepath.Join(p.DPDK, testpmdPlace), p.passt()}, p.Drivers...) {
		if _, err := os.Stat(f); err != nil {
			return nil
		}
	}
	return &p
}

func (p *Peers) passt() string { return filepath.Join(p.Passt, "usr/bin/passt") }

// Testpmd is a command that runs DPDK's testpmd, with its drivers loaded: by the
// dynamic loader, since DPDK itself takes none below a folder that everybody may write
// to, as /tmp is.
func (p *Peers) Testpmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := loaderCommand(ctx, p.DPDK, filepath.Join(p.DPDK, testpmdPlace), args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "--preload", strings.Join(p.Drivers, ":"))
	return cmd
}

// PasstCommand is a command that runs passt.
func (p *Peers) PasstCommand(ctx context.Context, args ...string) *exec.Cmd {
	return loaderCommand(ctx, p.Passt, p.passt(), args...)
}
