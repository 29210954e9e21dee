package main

// ours is what is said of a row beside what the registry says.
type ours struct {
	// has is for rows that no registry knows: "yes", "no" or more words.
	has string
	// tests show a feature that is on offer, each as "FOLDER TestName".
	tests []string
	// option is how a feature is asked for that is not on offer by default.
	option string
	// why is the reason for a feature that is not on offer.
	why string
}

func tests(names ...string) ours { return ours{tests: names} }

func option(how string, names ...string) ours { return ours{option: how, tests: names} }

func out(why string) ours { return ours{why: why} }

// soon is for what has a place in the table and is not built yet: when it is on
// offer, its tests are to be named.
var soon = out("not built yet")

const (
	why64       = "vhost-user negotiates 64 bits"
	whyFeatures = "its device is not a network device"
	whyKick     = "a kick over vhost-user is an eventfd, which carries no data"
)

// about has a row for each of peers.txt, by section and name.
var about = map[string]map[string]ours{
	"device": {
		"CSUM":                            tests("netdev TestOffloads", "tap TestDriverOffloads"),
		"GUEST_CSUM":                      tests("netdev TestOffloads", "faults TestN06Offloads"),
		"CTRL_GUEST_OFFLOADS":             tests("faults TestN06Offloads", "ctrlq TestGuestOffloads", "qemu-test TestUML"),
		"MTU":                             option("--mtu", "netdev TestMTU", "qemu-test TestFeaturesUML"),
		"MAC":                             option("--mac", "faults TestP16Config", "qemu-test TestUML"),
		"GSO (legacy)":                    out("drivers since virtio 1.0 negotiate each kind by itself"),
		"GUEST_TSO4, GUEST_TSO6":          tests("netdev TestOffloads", "faults TestN06Offloads"),
		"GUEST_ECN":                       tests("tap TestOffloadArgument", "tap TestKernelTakesEverySubset", "virtio TestCheckRX"),
		"GUEST_UFO":                       tests("tap TestOffloadArgument", "virtio TestCheckRX"),
		"HOST_TSO4, HOST_TSO6":            tests("netdev TestOffloads", "faults TestN05Headers"),
		"HOST_ECN":                        tests("faults TestN05Headers", "virtio TestCheckTX"),
		"HOST_UFO":                        tests("faults TestN05Headers", "virtio TestCheckTX"),
		"MRG_RXBUF":                       tests("netdev TestMergeable", "faults TestN03Mergeable", "interop TestVirtioUser"),
		"STATUS":                          tests("netdev TestLink", "qemu-test TestFeaturesUML"),
		"CTRL_VQ":                         tests("faults TestN09ControlRing", "driver TestControlCommands", "qemu-test TestUML"),
		"CTRL_RX":                         tests("netdev TestFilterModes", "faults TestN11Commands", "qemu-test TestFeaturesUML"),
		"CTRL_VLAN":                       tests("ctrlq TestFilterVLAN", "faults TestN11Commands", "qemu-test TestFeaturesUML"),
		"CTRL_RX_EXTRA":                   tests("netdev TestFilterModes", "faults TestN11Commands"),
		"GUEST_ANNOUNCE":                  tests("netdev TestAnnounce"),
		"MQ":                              option("--queue-pairs, up to 127", "netdev TestQueuePairs", "qemu-test TestUML", "qemu-test TestNetdev"),
		"CTRL_MAC_ADDR":                   tests("faults TestN11Commands", "qemu-test TestFeaturesUML"),
		"GUEST_RSC4, GUEST_RSC6 (legacy)": out("a private agreement of one driver's, with other meanings in the specification"),
		"DEVICE_STATS":                    tests("netdev TestStats", "qemu-test TestFeaturesUML"),
		"HASH_TUNNEL":                     out("Linux has no such bit (its virtio_net.h has nothing between 50 and 52), so that no guest of ours could exercise it"),
		"VQ_NOTF_COAL":                    tests("netdev TestSettings", "faults TestM07Commands", "qemu-test TestUML"),
		"NOTF_COAL":                       tests("netdev TestSettings", "faults TestM04Life", "qemu-test TestUML"),
		"GUEST_USO4, GUEST_USO6":          tests("netdev TestUSO", "tap TestOffloadArgument"),
		"HOST_USO":                        tests("netdev TestUSO"),
		"HASH_REPORT":                     option("--features +hash_report", "netdev TestHashReport", "faults TestN11RSS", "qemu-test TestFeaturesUML"),
		"GUEST_HDRLEN":                    tests("netdev TestUSO", "ctrlq TestHdrLenIsNoOffload"),
		"RSS":                             option("--features +rss", "netdev TestRSS", "faults TestN11RSS", "qemu-test TestFeaturesUML"),
		"RSC_EXT":                         out("no port says how many segments a received frame was made of; Linux drivers do not ask"),
		"STANDBY":                         option("--features +standby", "netdev TestSpeed"),
		"SPEED_DUPLEX":                    option("--link-speed", "netdev TestSpeed", "qemu-test TestFeaturesUML"),
		"RSS_CONTEXT":                     out(why64),
		"GUEST_UDP_TUNNEL_GSO, _CSUM":     out(why64),
		"HOST_UDP_TUNNEL_GSO, _CSUM":      out(why64),
		"OUT_NET_HEADER":                  out(why64),
		"IPSEC":                           out(why64),
	},
	"transport": {
		"NOTIFY_ON_EMPTY (legacy)":       soon,
		"VHOST_F_LOG_ALL":                tests("netdev TestDirtyLogSwitch", "faults TestP11FeaturesAgain"),
		"ANY_LAYOUT (legacy)":            out("VERSION_1 says it, and drivers without VERSION_1 get any layout too"),
		"INDIRECT_DESC":                  tests("vring TestIndirect", "faults TestV07SmallControl", "interop TestVirtioUser"),
		"EVENT_IDX":                      tests("faults TestV09Rearm", "faults TestV08Suppression", "qemu-test TestUML"),
		"VHOST_USER_F_PROTOCOL_FEATURES": tests("vhostuser TestFeaturesWithoutBit30", "faults TestP11FeaturesAgain"),
		"VERSION_1":                      tests("faults TestN01Header", "qemu-test TestUML"),
		"ACCESS_PLATFORM":                soon,
		"RING_PACKED":                    tests("vring TestPackedOps", "faults TestV14Packed", "qemu-test TestNetdevPacked", "interop TestVirtioUser"),
		"IN_ORDER":                       tests("faults TestV09Rearm", "netdev TestBothWays", "interop TestVirtioUser"),
		"ORDER_PLATFORM":                 out("it is for devices behind a bus; on one machine atomic instructions order memory"),
		"NOTIFICATION_DATA":              out(whyKick),
		"NOTIF_CONFIG_DATA":              out(whyKick),
		"RING_RESET":                     out("QEMU would acknowledge the reset of a queue and not pass it on: there is no message for it"),
		"ADMIN_VQ":                       out("it manages groups of devices, as those of one physical function"),
		"SUSPEND":                        out("there is no message for it: a front-end suspends a device by stopping its rings"),
	},
	"protocol": {
		"MQ":                        tests("netdev TestQueuePairs", "faults TestP16NeverOffered", "qemu-test TestNetdev"),
		"LOG_SHMFD":                 tests("netdev TestDirtyLog", "vhostuser TestLogHostile", "faults TestP15WhileLogging"),
		"RARP":                      tests("netdev TestAnnounce", "faults TestP16Optional"),
		"REPLY_ACK":                 tests("faults TestP10Replies", "vhostuser TestNeedReply"),
		"MTU":                       tests("netdev TestMTU", "faults TestP16Optional"),
		"BACKEND_REQ":               tests("vhostuser TestConfigChanged", "netdev TestLink", "faults TestP15Repeated"),
		"CROSS_ENDIAN":              out("both sides run on one little-endian machine"),
		"CRYPTO_SESSION":            out(whyFeatures),
		"PAGEFAULT (postcopy)":      soon,
		"CONFIG":                    tests("faults TestP16Config", "vhostuser TestConfig"),
		"BACKEND_SEND_FD":           soon,
		"HOST_NOTIFIER":             out("it maps the doorbell of a piece of hardware"),
		"INFLIGHT_SHMFD":            soon,
		"RESET_DEVICE":              tests("faults TestP16Resets", "vhostuser TestResets"),
		"INBAND_NOTIFICATIONS":      soon,
		"CONFIGURE_MEM_SLOTS":       tests("faults TestP15MemoryRegions", "vhostuser TestMemRegions"),
		"STATUS":                    tests("netdev TestFeatureDependencies", "vhostuser TestStatusMTUAndRARP"),
		"XEN_MMAP":                  out("guest memory of Xen is mapped by grants; nobody asks for it here"),
		"SHARED_OBJECT":             out("it is for devices that share graphics buffers"),
		"DEVICE_STATE":              soon,
		"GET_VRING_BASE_INFLIGHT":   out("a ring that stops has nothing in flight: all that was taken is completed or given back"),
		"GPA_ADDRESSES":             out("no front-end has it"),
		"SHMEM":                     out("it is for devices with shared memory regions of their own, GPU and file systems"),
		"GET_VRING_BASE_SKIP_DRAIN": out("it needs GET_VRING_BASE_INFLIGHT; draining takes less than a burst here"),
	},
	"control": {
		"RX: PROMISC to NOBCAST":                    tests("netdev TestFilterModes", "faults TestN11Commands", "qemu-test TestFeaturesUML"),
		"MAC: TABLE_SET, ADDR_SET":                  tests("faults TestN11Commands", "ctrlq TestFilterOverflow", "qemu-test TestFeaturesUML"),
		"VLAN: ADD, DEL":                            tests("faults TestN11Commands", "ctrlq TestManyVLANs", "qemu-test TestFeaturesUML"),
		"ANNOUNCE: ACK":                             tests("netdev TestAnnounce"),
		"MQ: VQ_PAIRS_SET, RSS_CONFIG, HASH_CONFIG": tests("netdev TestQueuePairs", "netdev TestRSS", "faults TestN11RSS", "qemu-test TestFeaturesUML"),
		"GUEST_OFFLOADS: SET":                       tests("faults TestN06Offloads", "qemu-test TestUML"),
		"NOTF_COAL: TX_SET, RX_SET, VQ_SET, VQ_GET": tests("faults TestM04Life", "faults TestM07Commands", "ctrlq TestVQGetReply", "qemu-test TestUML"),
		"HASH_TUNNEL: SET":                          out("see HASH_TUNNEL"),
		"STATS: QUERY, GET":                         tests("netdev TestStats", "ctrlq TestStats", "qemu-test TestFeaturesUML"),
		"RSS_CTX: CAP_GET, ADD, MOD, DEL":           out("see RSS_CONTEXT"),
	},
	"operations": {
		"server socket":        {has: "yes", tests: []string{"vhostuser TestRunServer", "faults TestL02ConnectCycles"}},
		"client socket":        {has: "yes", option: "--client", tests: []string{"vhostuser TestRunClient", "faults TestL02Client"}},
		"front-end reconnects": {has: "yes", tests: []string{"faults TestL02ConnectCycles", "faults TestS04Revived", "qemu-test TestNetdev"}},
		"--socket-path, --fd, --print-capabilities": {has: "yes", tests: []string{"cmd/vhostnet TestFD", "cmd/vhostnet TestPrintCapabilities"}},
		"SIGTERM ends it in order":                  {has: "yes", tests: []string{"cmd/vhostnet TestSIGTERM", "faults TestL02EndUnderLoad"}},
		"devices per process":                       {has: "many", tests: []string{"cmd/vhostnet TestManyIdleDevices", "qemu-test TestSwitch"}},
		"a device is removed at run time":           {has: "yes", tests: []string{"cmd/vhostnet TestDeviceCommands", "fleet TestAddAndRemove"}},
		"statistics":                                {has: "yes", tests: []string{"netdev TestStats", "cmd/vhostnet TestStatusAPI"}},
		"metrics as JSON or for Prometheus":         {has: "JSON", tests: []string{"mgmt TestClient", "cmd/vhostnet TestStatusAPI"}},
		"capture files":                             {has: "as a port", tests: []string{"port/pcap TestRoundTrip", "cmd/vhostnet TestCapture"}},
		"rate limit":                                {has: "no", why: "the host's traffic control does it for a TAP"},
		"seccomp, sandbox":                          {has: "no", why: "not built yet"},
		"NUMA":                                      {has: "no", why: "memory is the guest's; threads are placed with --thread-cpus"},
		"processor affinity":                        {has: "yes", option: "--thread-cpus", tests: []string{"netdev TestPoolConfig", "cmd/vhostnet TestThreads"}},
		"busy polling":                              {has: "bounded", tests: []string{"netdev TestPoller", "netdev TestPollerChanges"}},
		"no buffers in the guest: frames wait":      {has: "yes", tests: []string{"faults TestN03Mergeable", "faults TestT01Full"}},
		"used-buffer notifications coalesced":       {has: "yes", tests: []string{"netdev TestLimitsInForce", "faults TestM01Timer"}},
		"adaptive moderation":                       {has: "4 engines", tests: []string{"netdev TestEngines", "coalesce/sim TestGuestDIMAndHostDoNotFight", "qemu-test TestNetdev"}},
		"dirty log for migration":                   {has: "yes", tests: []string{"netdev TestDirtyLog", "vring TestLogComplete"}},
	},
}
