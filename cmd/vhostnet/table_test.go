package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/virtio"
)

const fullTable = `
# All keys that there are.
[[device]]
name = "vm1"
socket-path = "/run/vm1.sock"
client = true
port = "echo"
tap-io = "readv"
queue-pairs = 4
queue-size = 512
mac = "52:54:00:12:34:56"
mtu = 9000
features = "-mrg_rxbuf,+csum"
rx-coalesce = "64/32"
tx-moderation = "net-dim"
coalesce-strict = true
trace = "/tmp/trace"

[[device]]
name = "vm2"
fd = 3
rx-moderation = "adaptive"
tx-coalesce = "1/2"
`

func TestParseConfig(t *testing.T) {
	got, err := parseConfig([]byte(fullTable))
	if err != nil {
		t.Fatal(err)
	}
	four, three := 4, 3
	want := []deviceTable{
		{SocketPath: "/run/vm1.sock", Client: true, deviceFlags: deviceFlags{
			Name: "vm1", Port: "echo", TapIO: "readv", QueuePairs: &four, QueueSize: 512,
			MAC: mac{0x52, 0x54, 0, 0x12, 0x34, 0x56}, MTU: 9000,
			Features:   featureEdit{with: virtio.FeatureCSum, without: virtio.FeatureMrgRxBuf},
			RXCoalesce: limits{Usecs: 64, Packets: 32}, TXModeration: "net-dim", CoalesceStrict: true, Trace: "/tmp/trace",
		}},
		{FD: &three, deviceFlags: deviceFlags{Name: "vm2", RXModeration: "adaptive", TXCoalesce: limits{Usecs: 1, Packets: 2}}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(deviceTable{}, featureEdit{})); d != "" {
		t.Error(d)
	}
	if got[1].pairs() != 1 {
		t.Errorf("%d queue pairs if nothing is said", got[1].pairs())
	}
	for _, empty := range []string{"", "# nothing\n"} {
		if got, err := parseConfig([]byte(empty)); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
	// In the API a device has the same keys.
	for _, table := range want[:1] {
		object, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseObject(object)
		if err != nil || !reflect.DeepEqual(back, table) {
			t.Errorf("%s is read as %+v, %v", object, back, err)
		}
	}
}

// A table has a key for each flag that describes a device, called as the flag is.
func TestTablesHaveAllFlags(t *testing.T) {
	c, err := parse(t, "--fd=3")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Serve.deviceFlags, noDeviceFlags()) {
		t.Errorf("defaults are %+v", c.Serve.deviceFlags)
	}
	_, help, _ := inProcess(t, "serve", "--help")
	for i := range reflect.TypeFor[deviceFlags]().NumField() {
		f := reflect.TypeFor[deviceFlags]().Field(i)
		key := f.Tag.Get("toml")
		if key == "" || f.Tag.Get("json") != key+",omitzero" || !strings.Contains(help, "--"+key) {
			t.Errorf("%s: key %q in a file, %q in the API", f.Name, key, f.Tag.Get("json"))
		}
	}
}

func TestBadConfig(t *testing.T) {
	const head = "[[device]]\nname = \"a\"\nsocket-path = \"/s\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"syntax":           {"[[device]\n", "1:"},
		"unknown key":      {head + "port = \"echo\"\nspeed = 9\n", `5:1: unknown key "device.speed"`},
		"unknown table":    {head + "[other]\nx = 1\n", `4:2: unknown key "other"`},
		"type":             {head + "queue-pairs = \"two\"\n", "4:"},
		"value":            {head + "mac = \"52:54\"\n", "4:"},
		"name":             {"[[device]]\nname = \"a/b\"\n", "letters"},
		"no name":          {"[[device]]\nsocket-path = \"/s\"\n", " device 1 has no name"},
		"no socket":        {"[[device]]\nname = \"a\"\n", `device "a": socket-path has 0 bytes`},
		"socket and fd":    {head + "fd = 3\n", "socket-path and fd exclude each other"},
		"negative fd":      {"[[device]]\nname = \"a\"\nfd = -1\n", "fd -1"},
		"no pairs":         {head + "queue-pairs = 0\n", `device "a": queue-pairs 0: want 1 to 127`},
		"queue size":       {head + "queue-size = 100\n", "power of two"},
		"mtu":              {head + "mtu = 67\n", "68 to 65535"},
		"port":             {head + "port = \"bridge:br0\"\n", "port bridge:br0"},
		"tap":              {head + "port = \"tap\"\n", "tap:NAME"},
		"source":           {head + "port = \"source:1\"\n", "source"},
		"switch":           {head + "port = \"switch:a b\"\n", "letters"},
		"af-packet":        {head + "port = \"af-packet:a/b\"\n", "bad interface name"},
		"pcap":             {head + "port = \"pcap:file\"\n", "record=FILE"},
		"tap-fd":           {head + "port = \"tap-fd:x\"\n", "open descriptors"},
		"tap-fd twice":     {head + "port = \"tap-fd:3,3\"\n", "twice"},
		"tap-fd and fd":    {"[[device]]\nname = \"a\"\nfd = 3\nport = \"tap-fd:3\"\n", "fd 3 is that"},
		"tap-io":           {head + "tap-io = \"fast\"\n", "readv"},
		"moderation twice": {head + "rx-coalesce = \"1/1\"\nrx-moderation = \"off\"\n", "give one of them"},
		"engine":           {head + "rx-moderation = \"fast\"\n", "must be off"},
		"trace":            {head + "trace = \"/t\"\n", "trace needs an engine"},
		"feature":          {head + "features = \"+nonsense\"\n", "nonsense"},
		"same name":        {head + "[[device]]\nname = \"a\"\nsocket-path = \"/t\"\n", `name a is that of device "a"`},
		"same socket":      {head + "[[device]]\nname = \"b\"\nsocket-path = \"/s\"\n", `device "b": socket-path /s is that of device "a"`},
		"same fd":          {"[[device]]\nname = \"a\"\nfd = 3\n[[device]]\nname = \"b\"\nfd = 3\n", "fd 3 is that"},
	} {
		got, err := parseConfig([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "--") || got != nil {
			t.Errorf("%s: %v, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestBadObject(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "EOF",
		"[]":                                "array",
		`{"name":"a","socket-path":"/s"} x`: "something follows",
		`{"socket-path":"/s"}`:              "no name",
		`{"name":"a","socket-path":"/s","speed":1}`:         "speed",
		`{"name":"a","fd":3}`:                               "handed down",
		`{"name":"a","socket-path":"/s","port":"tap-fd:3"}`: "handed down",
		`{"name":"a","socket-path":"/s","mtu":1}`:           "mtu 1",
		`{"name":"a b","socket-path":"/s"}`:                 "letters",
	} {
		_, err := parseObject([]byte(text))
		if !errors.Is(err, mgmt.ErrValue) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Whatever is read, nothing panics, and what is accepted passes its own check.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{fullTable, "", "[[device]]", "device = 1", "[device]\nname=\"a\"", `{"name":"a","socket-path":"/s"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tables, err := parseConfig(b)
		if err != nil && tables != nil {
			t.Fatalf("%q: %v with %v", b, err, tables)
		}
		if object, err := parseObject(b); err == nil {
			tables = append(tables, object)
		}
		for _, table := range tables {
			if err := table.check(); err != nil || table.Name == "" {
				t.Fatalf("%q: accepted %+v: %v", b, table, err)
			}
		}
	})
}
