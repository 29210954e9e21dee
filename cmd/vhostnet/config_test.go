package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// site is a process with a file of devices.
type site struct {
	*process
	t         *testing.T
	dir, file string
	api       *mgmt.Client
}

func newSite(t *testing.T, tables ...string) *site {
	t.Helper()
	return newSiteWith(t, nil, tables...)
}

// newSiteWith is newSite with further flags.
func newSiteWith(t *testing.T, flags []string, tables ...string) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, dir: dir, file: filepath.Join(dir, "devices.toml")}
	s.write(tables...)
	s.process = spawn(t, append([]string{"serve", "--config", s.file, "--api", s.address()}, flags...)...)
	s.await("status API listens", 1)
	var err error
	if s.api, err = mgmt.Dial(t.Context(), s.address()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.api.Close)
	return s
}

func (s *site) address() string         { return "unix:" + filepath.Join(s.dir, "api") }
func (s *site) path(name string) string { return filepath.Join(s.dir, name) }
func (s *site) write(tables ...string)  { writeFile(s.t, s.file, strings.Join(tables, "\n")) }
func (s *site) states() map[string]string {
	s.t.Helper()
	list, err := s.api.Devices(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	m := map[string]string{}
	for _, d := range list {
		m[d.Name] = strings.TrimSpace(d.State + " " + d.Error)
	}
	return m
}

// reload sends SIGHUP after the file was written and waits for the n-th of such a
// message.
func (s *site) reload(message string, n int, tables ...string) {
	s.t.Helper()
	s.write(tables...)
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	s.await(message, n)
}

// table is that of a device with a socket of its name.
func (s *site) table(name string, more ...string) string { return table(s.dir, name, more...) }

func table(dir, name string, more ...string) string {
	return fmt.Sprintf("[[device]]\nname = %q\nsocket-path = %q\n%s\n", name, filepath.Join(dir, name), strings.Join(more, "\n"))
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// echoes sends frames through an echo and back.
func echoes(t *testing.T, d *driver.Driver, n int) {
	t.Helper()
	frame := make([]byte, 60)
	copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for range n {
		if err := d.Pair(0).TX.Send(frame); err != nil {
			t.Fatal(err)
		}
		d.Pair(0).TX.Flush()
		receive(t, d.Pair(0).RX, 1)
		d.Pair(0).TX.Reclaim()
	}
}

const inForce = "configuration in force"

// A file that is read again changes what has changed in it: the guest of another
// device does not notice, and one with an error changes nothing.
func TestReload(t *testing.T) {
	s := newSite(t)
	s.await(inForce, 1)
	if len(s.states()) != 0 {
		t.Error(s.states())
	}
	a, b, c := s.table("a", `port = "echo"`), s.table("b", `port = "echo"`), s.table("c", `port = "source:64"`)
	s.reload(inForce, 2, a, b)
	d := guest(t, s.path("a"), driver.Config{})
	echoes(t, d, 10)
	_ = guest(t, s.path("b"), driver.Config{}) // its device goes away

	s.reload("the configuration stays as it was", 1, a, c, "[[device]]\nnome = \"d\"\n")
	if !strings.Contains(s.log(), "devices.toml:12:1: unknown key \\\"device.nome\\\"") {
		t.Error("no position in the log")
	}
	if got := fmt.Sprint(s.states()); got != "map[a:serving b:serving]" {
		t.Error(got)
	}
	echoes(t, d, 10)

	// b has other queue pairs, c is new, and a has other words for the same.
	s.reload(inForce, 3, c, s.table("b", `port = "echo"`, "queue-pairs = 2"), strings.ReplaceAll(a, " = ", "="))
	s.await("added=1 changed=1 failed=0 kept=1 removed=0", 1)
	if got := fmt.Sprint(s.states()); got != "map[a:serving b:serving c:serving]" {
		t.Error(got)
	}
	echoes(t, d, 10)
	two := guest(t, s.path("b"), driver.Config{QueuePairs: 2})
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	s.reload(inForce, 4, a)
	if got := fmt.Sprint(s.states()); got != "map[a:serving]" {
		t.Error(got)
	}
	for _, gone := range []string{"b", "c"} {
		if _, err := os.Lstat(s.path(gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket of %s: %v", gone, err)
		}
	}
	echoes(t, d, 10)
	snapshot, err := s.api.Device(t.Context(), "a")
	if err != nil || snapshot.FrontEnd.Connections != 1 {
		t.Errorf("%d connections, %v", snapshot.FrontEnd.Connections, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	s.end(syscall.SIGTERM, s.path("a"), s.path("api"))
}

// Devices come and go by command while another one has traffic.
func TestDeviceCommands(t *testing.T) {
	s := newSite(t, table(t.TempDir(), "other"))
	s.reload(inForce, 2, s.table("a", `port = "echo"`))
	d := guest(t, s.path("a"), driver.Config{})
	for range 3 {
		code, out, errs := inProcess(t, "device", "add", "--api", s.address(), "--name=b", "--socket-path", s.path("b"),
			"--port=echo", "--queue-pairs=2", "--mac=02:00:00:00:00:07", "--features=-csum", "--rx-coalesce=64/8")
		if code != exitOK || !strings.Contains(out, "b: port echo") {
			t.Fatalf("exit code %d: %s%s", code, out, errs)
		}
		g := guest(t, s.path("b"), driver.Config{QueuePairs: 2})
		if g.MAC() != [6]byte{2, 0, 0, 0, 0, 7} {
			t.Errorf("MAC %x", g.MAC())
		}
		echoes(t, g, 3)
		echoes(t, d, 3)
		_, out, _ = inProcess(t, "device", "list", "--api", s.address())
		if lines := strings.Split(out, "\n"); len(lines) != 4 || strings.Join(strings.Fields(lines[2]), " ") != "b serving echo 2 connected" {
			t.Errorf("list:\n%s", out)
		}
		_, out, _ = inProcess(t, "device", "list", "--json", "--api", s.address())
		if !strings.HasPrefix(out, `[{"name":"a"`) || !strings.Contains(out, `"usecs":64,"packets":8`) {
			t.Error(out)
		}
		// The file does not know of b.
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if code, _, errs = inProcess(t, "device", "remove", "--api", s.address(), "b"); code != exitOK {
			t.Fatal(errs)
		}
		_ = g.Close() // its device is gone
		if _, err := os.Lstat(s.path("b")); !errors.Is(err, os.ErrNotExist) {
			t.Error("the socket of b:", err)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"status 404", []string{"remove", "b"}},
		{"status 409", []string{"add", "--name=a", "--socket-path", s.path("c")}},
		{"status 400", []string{"add", "--name=c", "--socket-path", s.path("c"), "--port=bridge:br0"}},
		{"status 400", []string{"add", "--name=c", "--socket-path", s.path("c"), "--features=+hash_tunnel"}},
		{"status 500", []string{"add", "--name=c", "--socket-path", s.path("a")}},
	} {
		code, _, errs := inProcess(t, append([]string{"device", c.args[0], "--api", s.address()}, c.args[1:]...)...)
		if code != exitFailed || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d: %s", c.args, code, errs)
		}
	}
	echoes(t, d, 3)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	s.end(syscall.SIGTERM, s.path("a"))
}

// The devices of a process that was started with flags are fixed.
func TestDevicesAreFixedWithoutConfig(t *testing.T) {
	path := socket(t)
	api := "unix:" + path + ".api"
	p := spawn(t, "--socket-path", path, "--api", api)
	p.await(listening, 1)
	code, _, errs := inProcess(t, "device", "add", "--api", api, "--name=b", "--socket-path", path+"2")
	if code != exitFailed || !strings.Contains(errs, fmt.Sprint(http.StatusMethodNotAllowed)) {
		t.Errorf("exit code %d: %s", code, errs)
	}
	p.end(syscall.SIGTERM, path)
}

func TestConfigErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	writeFile(t, file, "[[device]]\nnaem = 1\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--config", file}, exitFailed, file + `:2:1: unknown key "device.naem"`},
		{[]string{"--config", file + "x"}, exitFailed, file + "x"},
		{[]string{"--config", file, "--port=echo"}, exitUsage, "--config"},
		{[]string{"--config", file, "--queue-pairs=2"}, exitUsage, "--config"},
		{[]string{"--config", file, "--client"}, exitUsage, "--config"},
		{[]string{"--config", file, "--socket-path=/s"}, exitUsage, "can't be used together"},
	} {
		code, _, errs := inProcess(t, append(c.args, "--log-level=error")...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d: %s", c.args, code, errs)
		}
	}
}

// A device that cannot be opened, and one whose TAP goes away, are reported; the
// others go on, and SIGHUP tries again.
func TestFailuresAreReported(t *testing.T) {
	isolate(t)
	other := socket(t)
	taken := spawn(t, "--socket-path", other)
	taken.await(listening, 1)
	dir := t.TempDir()
	busy := fmt.Sprintf("[[device]]\nname = \"busy\"\nsocket-path = %q\n", other)
	good := table(dir, "good", `port = "echo"`)
	tapped := table(dir, "tapped", `port = "tap:vn7"`)
	s := newSite(t, busy, good, tapped)
	states := s.states()
	if states["good"] != "serving" || states["tapped"] != "serving" || !strings.HasPrefix(states["busy"], "failed ") ||
		!strings.Contains(states["busy"], "another process listens there") {
		t.Fatalf("%v", states)
	}
	d := guest(t, filepath.Join(dir, "good"), driver.Config{})
	onTAP := guest(t, filepath.Join(dir, "tapped"), driver.Config{})
	echoes(t, d, 3)
	link, err := netlink.LinkByName("vn7")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	s.await("port has failed", 1)
	if got := s.states()["tapped"]; !strings.HasPrefix(got, "failed port: ") || !strings.Contains(got, "gone") {
		t.Error(got)
	}
	echoes(t, d, 3)
	taken.end(syscall.SIGTERM, other)
	s.reload(inForce, 2, busy, good, tapped)
	if got := fmt.Sprint(s.states()); got != "map[busy:serving good:serving tapped:serving]" {
		t.Error(got)
	}
	_ = onTAP.Close() // its device was opened again
	echoes(t, d, 3)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	s.end(syscall.SIGTERM, other, filepath.Join(dir, "good"), filepath.Join(dir, "tapped"))
}

// Descriptors in a file: served at the start, and the process outlives them.
func TestDescriptorsInAFile(t *testing.T) {
	ours, theirs := pair(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	fd := "[[device]]\nname = \"fd\"\nfd = 3\n"
	writeFile(t, file, fd+table(dir, "a"))
	p := launch(t, prepare(t, []*os.File{theirs}, "--config", file))
	_ = theirs.Close()
	answers(t, ours)
	if err := ours.Close(); err != nil {
		t.Fatal(err)
	}
	p.await("device ended", 1)
	for i, text := range []string{fd + table(dir, "a"), table(dir, "a")} {
		writeFile(t, file, text)
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		p.await(inForce, 2+i)
	}
	writeFile(t, file, table(dir, "a")+"[[device]]\nname = \"fd\"\nfd = 4\n")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.await("handed down at the start only", 1)
	answers(t, dial(t, filepath.Join(dir, "a")))
	p.end(syscall.SIGTERM, filepath.Join(dir, "a"))
}

// Devices share threads that stay on a processor, and each of them works.
func TestThreads(t *testing.T) {
	dir := t.TempDir()
	s := newSiteWith(t, []string{"--threads=2", "--thread-cpus=0"},
		table(dir, "a", `port = "echo"`), table(dir, "b", `port = "echo"`), table(dir, "c", `port = "echo"`, "queue-pairs = 2"))
	for _, name := range []string{"a", "b", "c"} {
		d := guest(t, filepath.Join(dir, name), driver.Config{})
		echoes(t, d, 100)
		t.Cleanup(func() { _ = d.Close() })
	}
	s.end(syscall.SIGTERM, filepath.Join(dir, "a"))
}

// 256 idle devices with drivers take less than 150 MB and do nothing.
func TestManyIdleDevices(t *testing.T) {
	t.Run("threads of their own", func(t *testing.T) { manyIdleDevices(t, 1000) })
	t.Run("shared threads", func(t *testing.T) { manyIdleDevices(t, 300, "--threads=2") })
}

// manyIdleDevices starts them, in a process with so many threads at most.
func manyIdleDevices(t *testing.T, mostThreads int, flags ...string) {
	const devices, most = 256, 150 << 10
	dir := t.TempDir()
	var tables []string
	for i := range devices {
		tables = append(tables, table(dir, strconv.Itoa(i), `port = "echo"`))
	}
	s := newSiteWith(t, flags, tables...)
	for i := range devices {
		d := guest(t, filepath.Join(dir, strconv.Itoa(i)), driver.Config{})
		echoes(t, d, 1)
		t.Cleanup(func() { _ = d.Close() })
	}
	list, err := s.api.Devices(t.Context())
	if err != nil || len(list) != devices {
		t.Fatal(len(list), err)
	}
	for _, d := range list {
		if d.State != netdev.StateServing || !d.FrontEnd.Connected {
			t.Errorf("%s: %s", d.Name, d.State)
		}
	}
	kb, threads := s.footprint()
	t.Logf("%d devices: %d KB resident, %d threads", devices, kb, threads)
	if threads > mostThreads {
		t.Errorf("%d threads, want %d at most", threads, mostThreads)
	}
	if kb > most && !raceDetector {
		t.Errorf("%d KB resident, want %d at most", kb, most)
	}
	s.end(syscall.SIGTERM, filepath.Join(dir, "0"))
}

// footprint is the process's resident memory in KiB and its number of threads.
func (p *process) footprint() (residentKB, threads int) {
	p.t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &residentKB)
		_, _ = fmt.Sscanf(line, "Threads: %d", &threads)
	}
	if residentKB == 0 || threads == 0 {
		p.t.Fatal("no footprint")
	}
	return residentKB, threads
}
