package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The files are what the command writes: what the device has, each with a test that
// exists, and what it has not, each with a reason.
func TestFilesAreUpToDate(t *testing.T) {
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	want, err := files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != text {
			t.Errorf("%s is not up to date: go generate ./internal/featuretable", name)
		}
	}
}

// What was asked of a device is what this test knows of it by heart.
func TestStates(t *testing.T) {
	list, _, err := tables()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]state{
		"device MRG_RXBUF": yes, "device GUEST_TSO4, GUEST_TSO6": yes, "device MTU": onRequest, "device RSS": onRequest,
		"device RSC_EXT": no, "device IPSEC": no, "transport VHOST_F_LOG_ALL": yes, "transport RING_RESET": no,
		"protocol REPLY_ACK": yes, "protocol CRYPTO_SESSION": no, "operations client socket": yes, "operations rate limit": no,
		"control NOTF_COAL: TX_SET, RX_SET, VQ_SET, VQ_GET": yes, "control HASH_TUNNEL: SET": no, "control RSS_CTX: CAP_GET, ADD, MOD, DEL": no,
	} {
		section, name, _ := strings.Cut(name, " ")
		if r := find(t, list, section, name); r.state != want {
			t.Errorf("%s %s: state %d, want %d", section, name, r.state, want)
		}
	}
	// Commands that a class does not have are missed.
	for n, want := range map[int]state{6: yes, 7: part} {
		if s := commands(0, n); s != want {
			t.Errorf("%d commands of class 0: state %d, want %d", n, s, want)
		}
	}
}

func find(t *testing.T, list []section, section, name string) *row {
	t.Helper()
	for i := range list {
		for j := range list[i].rows {
			if r := &list[i].rows[j]; list[i].name == section && r.name == name {
				return r
			}
		}
	}
	t.Fatalf("no row %s in %s", name, section)
	return nil
}

// What the checks say of tables that are wrong.
func TestChecksCatch(t *testing.T) {
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	exists, err := testsOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	drop := func(list []section, section, name string) {
		for i := range list {
			if list[i].name == section {
				list[i].rows = slices.DeleteFunc(list[i].rows, func(r row) bool { return r.name == name })
			}
		}
	}
	for want, change := range map[string]func(list []section){
		"":                                         func([]section) {},
		"device: CSUM: on offer: name the tests":   func(l []section) { find(t, l, "device", "CSUM").tests = nil },
		`there is no test "netdev TestNothing"`:    func(l []section) { find(t, l, "device", "CSUM").tests = []string{"netdev TestNothing"} },
		"device: MTU: on request: say how":         func(l []section) { find(t, l, "device", "MTU").option = "" },
		"device: IPSEC: not on offer, with 0 test": func(l []section) { find(t, l, "device", "IPSEC").why = "" },
		"device: IPSEC: not on offer, with 1 test": func(l []section) { find(t, l, "device", "IPSEC").tests = []string{"netdev TestStats"} },
		"device: CSUM: ours.go has it, peers.txt":  func(l []section) { drop(l, "device", "CSUM") },
		"feature bit 53, VIRTIO_NET_F_NOTF_COAL":   func(l []section) { drop(l, "device", "NOTF_COAL") },
		"on offer without a row: VIRTIO_NET_F_MQ":  func(l []section) { drop(l, "device", "MQ") },
		"protocol feature 3, REPLY_ACK, has no":    func(l []section) { drop(l, "protocol", "REPLY_ACK") },
		"on offer without a row: REPLY_ACK":        func(l []section) { drop(l, "protocol", "REPLY_ACK") },
		"device: news: nothing is said of it":      func(l []section) { l[0].rows = append(l[0].rows, row{name: "news", bits: []int{77}}) },
		"device: CSUM: 0 has two rows":             func(l []section) { l[0].rows = append(l[0].rows, l[0].rows[0]) },
	} {
		list, reg, err := tables()
		if err != nil {
			t.Fatal(err)
		}
		change(list)
		got := strings.Join(append(check(list, exists), offered(list, reg)...), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"1 | A | yes":               "peers.txt:1: a row before",
		"[device] X\n1 | A":         "peers.txt:2: 2 cells, want 3",
		"[device] X\nx | A | yes":   "peers.txt:2: ",
		"[device] X\n1,| A | yes\n": "peers.txt:2: ",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := replace("no marks", ""); err == nil {
		t.Error("a file without marks is taken")
	}
	got, err := replace("a\n"+begin+"old\n"+end+"b\n", "new\n")
	if want := "a\n" + begin + "new\n" + end + "b\n"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
}
