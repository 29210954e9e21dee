package archtest

// rule is what a package may import.
type rule struct {
	// ours are the module's packages that it may import, by folder; a folder
	// stands for itself only. "*" is all of them.
	ours []string
	// why is the reason for what ours leaves out.
	why string
	// not are imports of any origin that it must not have, with the reason; a
	// path stands for what is below it too.
	not map[string]string
}

// pure is for packages that compute: what they do depends on their arguments.
func pure(why string) map[string]string {
	return map[string]string{
		"os":                    why,
		"net":                   why,
		"syscall":               why,
		"time":                  why,
		"log":                   why,
		"golang.org/x/sys/unix": why,
	}
}

// rules has a row for each folder with Go files. A folder without a row fails
// the test, so that its place is decided and not drifted into.
var rules = map[string]rule{
	// Vocabulary.
	"virtio": {
		why: "the vocabulary stands below everything",
		not: pure("the vocabulary is shared by device and driver: it has no state, clock or file descriptor"),
	},

	"toeplitz": {
		why: "a hash is of bytes: whose frames they are, and where the hash sends them, is for the device",
		not: pure("a hash depends on its arguments alone"),
	},

	// Mechanism.
	"guestmem": {why: "shared memory is bytes and addresses: what they mean is for the packages above"},
	"coalesce": {
		why: "the moderator counts packets and time: it never sees a ring",
		not: pure("the moderator is tested with a fake clock: time comes in as a number, and it never sees a file descriptor"),
	},
	"coalesce/sim": {
		ours: []string{"coalesce"},
		why:  "the simulator has models where the device has rings, ports and guests",
		not:  pure("a run depends on its arguments alone: time is virtual, and traces come from a reader"),
	},
	"coalesce/trace": {
		ours: []string{"coalesce"},
		why:  "a trace is of decisions: it knows neither who made them nor where it is written to",
		not:  pure("the datapath calls it: times are the observations', and files are the command's"),
	},
	"coalesce/sim/chart": {ours: []string{"coalesce/sim"}, why: "it draws results: how they came about is the simulator's"},
	"ctrlq": {
		ours: []string{"virtio"},
		why:  "commands are decoded from bytes: what they do is the handler's",
		not:  pure("commands are bytes that were copied out of guest memory once: no ring and no file descriptor"),
	},
	"vring": {
		ours: []string{"virtio", "guestmem"},
		why:  "a ring moves buffers: what is in them is the device's",
		not: map[string]string{
			"os":                    "a ring is memory: eventfds belong to its worker",
			"net":                   "a ring is memory",
			"log":                   "the datapath counts, it does not log",
			"golang.org/x/sys/unix": "a ring is memory: eventfds belong to its worker",
		},
	},
	"port":          {ours: []string{"virtio"}, why: "ports and the device meet here: neither is known"},
	"port/builtin":  {ours: []string{"port", "virtio", "internal/prefetch"}, why: "a port knows neither its device nor other ports"},
	"port/offload":  {ours: []string{"virtio"}, why: "it computes on a frame: whose that is does not matter", not: pure("what comes of a frame depends on the frame")},
	"port/afpacket": {ours: []string{"port", "port/offload", "virtio", "guestmem", "internal/linkwatch"}, why: "a port knows neither its device nor other ports"},
	"port/pcap":     {ours: []string{"port", "virtio"}, why: "a port knows neither its device nor other ports"},
	"port/vswitch":  {ours: []string{"port", "port/offload", "virtio", "internal/prefetch"}, why: "a switch knows its own ports: devices are behind them"},
	"tap":           {ours: []string{"port", "virtio", "guestmem", "toeplitz", "internal/uring", "internal/linkwatch"}, why: "a port knows neither its device nor other ports"},
	"vhostuser":     {ours: []string{"virtio", "guestmem", "internal/unixsock"}, why: "the protocol is for any device: it hands over ring addresses and does not follow them"},

	// Device and driver.
	"netdev": {
		ours: []string{"virtio", "guestmem", "vring", "coalesce", "ctrlq", "port", "toeplitz", "vhostuser", "internal/prefetch"},
		why:  "the device knows its host side as a port.Port only, and nothing of who watches it",
	},
	"driver": {
		ours: []string{"virtio", "guestmem", "vhostuser"},
		why:  "the driver is the device's counterpart in tests: one that shared the device's rings would share its mistakes",
	},

	"nativeguest": {
		ours: []string{"virtio", "coalesce", "driver", "port"},
		why:  "a guest sees its driver and its own port: the device is on the other side of a socket",
	},

	"fleet": {ours: []string{"netdev"}, why: "a fleet opens, serves and closes: what a device is made of is the command's"},

	// Management; TestMgmtSeesSnapshotsOnly narrows it down.
	"mgmt": {ours: []string{"netdev", "internal/unixsock"}, why: "management sees snapshots: it reaches neither a queue nor guest memory"},

	// Programs.
	"demo":         {ours: []string{"*"}},
	"bench":        {ours: []string{"*"}},
	"bench/guest":  {ours: []string{"*"}},
	"bench/stream": {ours: []string{"*"}},
	"bench/stat":   {why: "figures know nothing of what was measured"},
	"bench/peer": {
		ours: []string{"qemu-test/provision"},
		why:  "peers and vhostnet are programs here, on equal terms: neither is seen from inside",
	},
	"cmd/vhostnet": {ours: []string{"*"}},
	"qemu-test": {
		ours: []string{"virtio", "netdev", "mgmt", "qemu-test/guest", "qemu-test/provision"},
		why:  whyGuests,
	},
	"qemu-test/demo": {
		ours: []string{"virtio", "netdev", "mgmt", "qemu-test", "qemu-test/guest", "qemu-test/provision"},
		why:  whyGuests,
	},
	"qemu-test/guest":         {ours: []string{"virtio", "netdev", "mgmt", "qemu-test/provision"}, why: whyGuests},
	"qemu-test/provision":     {why: "it fetches and unpacks: it knows nothing of the device"},
	"qemu-test/provision/cmd": {ours: []string{"qemu-test/provision"}, why: "it fetches and unpacks: it knows nothing of the device"},

	"internal/scripted": {
		ours: []string{"virtio", "guestmem", "vhostuser"},
		why:  "a scripted front-end sees the device from outside only",
	},
	"faults": {
		ours: []string{"virtio", "guestmem", "vhostuser", "netdev", "internal/scripted"},
		why:  "fault cases run against the built binary",
	},

	"interop": {
		ours: []string{"netdev", "mgmt", "bench/peer", "qemu-test/provision"},
		why:  "front-ends of others and vhostnet are programs here: what is seen of the device is the status API",
	},

	"internal/prefetch":  {why: "it asks for memory: whose that is does not matter"},
	"internal/uring":     {why: "it makes system calls: what is read and written is for the packages above"},
	"internal/linkwatch": {why: "it hears of interfaces: what that means is for ports"},
	"internal/unixsock":  {why: "it makes sockets: what is said on them is for the packages above"},
	"internal/archtest":  {why: "it reads source text"},
	"internal/featuretable": {
		ours: []string{"virtio", "vhostuser", "netdev", "ctrlq", "port/builtin", "internal/unixsock"},
		why:  "it asks a device for its offer, as a front-end does, and the decoder of commands for those it knows",
	},
}

// whyGuests is why guests are tested from outside.
const whyGuests = "guests run against the built binary: what they see of the device is the status API"

// only are imports that belong to some folders alone, with the reason.
var only = map[string]struct {
	folders []string
	why     string
}{
	"github.com/alecthomas/kong":      {[]string{"cmd/vhostnet", "bench", "qemu-test"}, "flags are the programs'"},
	"github.com/sirupsen/logrus":      {[]string{"cmd/vhostnet"}, "libraries take a *slog.Logger; the command builds the logger behind it"},
	"github.com/songgao/water":        {[]string{"tap"}, "its descriptors lack IFF_VNET_HDR and CLOEXEC: it provisions, and tap hides that"},
	"github.com/mdlayher/vsock":       {[]string{"mgmt", "qemu-test"}, "AF_VSOCK carries the status API and the guests' reports"},
	"github.com/pelletier/go-toml/v2": {[]string{"cmd/vhostnet"}, "files are the command's"},
	"net/http":                        {[]string{"mgmt", "cmd/vhostnet", "qemu-test"}, "only management speaks HTTP"},
	"github.com/vishvananda/netns": {
		[]string{"tap", "port/afpacket", "driver", "nativeguest", "bench", "demo", "qemu-test", "internal/scripted"},
		"a network namespace belongs to a thread: the device's threads stay where they are",
	},
}

// nowhere are imports that no package has, with the reason.
var nowhere = map[string]string{
	"C":                     "the binary is static: no cgo",
	"plugin":                "the binary is static",
	"io/ioutil":             "deprecated",
	"golang.org/x/exp":      "its API is not stable",
	"math/rand":             "math/rand/v2",
	"github.com/pkg/errors": "errors and fmt wrap",
}

// badNames are folders that say nothing about what is in them.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "lib", "base", "shared"}
