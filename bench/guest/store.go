package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// laneReport is what guest-LANE.json contains.
type laneReport struct {
	Lane    string       `json:"lane"`
	Title   string       `json:"title,omitempty"`
	Time    time.Time    `json:"time"`
	Machine stat.Machine `json:"machine"`
	// Versions are of what was used, by name.
	Versions map[string]string `json:"versions"`
	Rounds   int               `json:"rounds"`
	// Seconds is for how long the counters are watched in a sample, after Settle.
	Seconds float64 `json:"seconds_per_sample"`
	Settle  float64 `json:"seconds_to_settle"`
	// Workloads are those that were measured.
	Workloads []workloadInfo `json:"workloads"`
	// Failure is why the lane was not measured to its end.
	Failure string   `json:"failure,omitempty"`
	Samples []sample `json:"samples"`
}

type workloadInfo struct {
	Name      string `json:"name"`
	About     string `json:"about"`
	Kind      string `json:"kind"`
	Direction string `json:"direction"`
	// Paced is whether the load's rate was given, and Base of which workload it is
	// a variation.
	Paced bool   `json:"paced,omitempty"`
	Base  string `json:"base,omitempty"`
}

func (r *laneReport) info(workload string) workloadInfo {
	for _, w := range r.Workloads {
		if w.Name == workload {
			return w
		}
	}
	return workloadInfo{Name: workload, Kind: kindBulk, Direction: "rx"}
}

// done is how many rounds have samples.
func (r *laneReport) done() (rounds int) {
	for _, s := range r.Samples {
		rounds = max(rounds, s.Round+1)
	}
	return rounds
}

// failed are the workloads without a single good sample.
func (r *laneReport) failed() (names []string) {
	for _, w := range r.Workloads {
		good := false
		for _, s := range r.Samples {
			good = good || s.Workload == w.Name && s.Error == ""
		}
		if !good {
			names = append(names, w.Name)
		}
	}
	return names
}

func laneFile(dir, lane, suffix string) string { return filepath.Join(dir, "guest-"+lane+suffix) }

// save writes a lane's results, in the place of older ones: all of them or, if the
// run is ended at that moment, nothing.
func (r *laneReport) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	next := laneFile(dir, r.Lane, ".json.next")
	if err := os.WriteFile(next, append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, laneFile(dir, r.Lane, ".json"))
}

// loadLanes reads the results that a folder has, in the order of laneNames.
func loadLanes(dir string) (list []*laneReport, err error) {
	for _, lane := range laneNames {
		raw, err := os.ReadFile(laneFile(dir, lane, ".json"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		r := &laneReport{}
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("%s: %w", laneFile(dir, lane, ".json"), err)
		}
		list = append(list, r)
	}
	return list, nil
}

// render writes the tables and the plots of all results that a folder has.
func render(dir string) error {
	list, err := loadLanes(dir)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("no results in %s", dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "guest.md"), []byte(markdown(list)), 0o644); err != nil {
		return err
	}
	for _, r := range list {
		svg, err := drawing(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(laneFile(dir, r.Lane, ".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func newLaneReport(o *options, lane string, chosen []workload) *laneReport {
	r := &laneReport{
		Lane: lane, Title: o.Title, Time: time.Now().UTC().Truncate(time.Second), Machine: stat.ThisMachine(),
		Versions: map[string]string{}, Rounds: o.Rounds, Seconds: o.Seconds, Settle: settle.Seconds(),
	}
	for _, w := range chosen {
		r.Workloads = append(r.Workloads, w.info())
	}
	return r
}

var sockperfVersion = regexp.MustCompile(`version (\S+)`)

// describe fills in what was used.
func (b *bench) describe(ctx context.Context, r *laneReport) error {
	ctx, cancel := context.WithTimeout(ctx, setTimeout)
	defer cancel()
	v := r.Versions
	guest, err := b.site.Guest(ctx, "uname -r; cat /proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return err
	}
	kernel, control, _ := strings.Cut(strings.TrimSpace(guest), "\n")
	if b.lane == "native" {
		control = congestionControl // by route, as on the host side
	}
	maps.Copy(v, b.versions)
	v["guest kernel"] = kernel
	v["congestion control"] = fmt.Sprintf("%s on the host, %s in the guest", congestionControl, control)
	// Its exit status is not 0.
	out, _ := b.site.Host(ctx, "sockperf", "--version")
	if m := sockperfVersion.FindStringSubmatch(out); m != nil {
		v["sockperf"] = m[1]
	}
	return nil
}

// versionsOf are those of what a lane uses.
func versionsOf(lane string, a *provision.Assets, vhostnet string) map[string]string {
	v := maps.Clone(a.Bench.Versions)
	v["vhostnet"] = vhostnet
	if emulated(lane) {
		v["QEMU"] = a.QEMU.Version
	}
	return v
}

// revision is that of the working folder, with a plus sign for changes.
func revision(ctx context.Context) string {
	root, err := provision.RepositoryRoot()
	if err != nil {
		return "unknown"
	}
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=+", "--exclude=*")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
