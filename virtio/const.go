package virtio

import "strconv"

// Descriptor flags and suppression flags of split virtqueues (virtio 1.4, "Split
// Virtqueues").
const (
	DescFNext         = 1
	DescFWrite        = 2
	DescFIndirect     = 4
	UsedFNoNotify     = 1
	AvailFNoInterrupt = 1
)

// Descriptor flags and event suppression of packed virtqueues (virtio 1.4, "Packed
// Virtqueues"), which have those of split ones too.
const (
	DescFAvail = 1 << 7
	DescFUsed  = 1 << 15
	// PackedWrap is the wrap counter beside a 15-bit offset in the ring.
	PackedWrap = 1 << 15
	// What an event suppression structure asks for: all notifications, none, or
	// one when a descriptor is reached.
	EventFEnable  = 0
	EventFDisable = 1
	EventFDesc    = 2
)

// Device status bits (virtio 1.4, "Device Status Field").
const (
	StatusAcknowledge = 1
	StatusDriver      = 2
	StatusDriverOK    = 4
	StatusFeaturesOK  = 8
	StatusNeedsReset  = 64
	StatusFailed      = 128
)

// Classes of control commands (virtio 1.4, "Network Device / Control Virtqueue").
const (
	CtrlRX            = 0
	CtrlMAC           = 1
	CtrlVLAN          = 2
	CtrlAnnounce      = 3
	CtrlMQ            = 4
	CtrlGuestOffloads = 5
	CtrlNotfCoal      = 6
	CtrlHashTunnel    = 7
	CtrlStats         = 8
)

// Commands by class.
const (
	CtrlRXPromisc    = 0
	CtrlRXAllMulti   = 1
	CtrlRXAllUni     = 2
	CtrlRXNoMulti    = 3
	CtrlRXNoUni      = 4
	CtrlRXNoBcast    = 5
	CtrlMACTableSet  = 0
	CtrlMACAddrSet   = 1
	CtrlVLANAdd      = 0
	CtrlVLANDel      = 1
	CtrlAnnounceAck  = 0
	CtrlMQVQPairsSet = 0
	CtrlMQRSSConfig  = 1
	CtrlMQHashConfig = 2

	CtrlGuestOffloadsSet = 0

	CtrlNotfCoalTXSet = 0
	CtrlNotfCoalRXSet = 1
	CtrlNotfCoalVQSet = 2
	CtrlNotfCoalVQGet = 3

	CtrlStatsQuery = 0
	CtrlStatsGet   = 1
)

// Types of statistics, as bit numbers in a bitmap and as they stand in a reply
// (virtio 1.4, "Device Statistics").
const (
	StatsRXBasic = 0
	StatsRXCSum  = 1
	StatsRXGSO   = 2
	StatsRXSpeed = 3
	StatsTXBasic = 16
	StatsTXCSum  = 17
	StatsTXGSO   = 18
	StatsTXSpeed = 19
	StatsCVQ     = 32
)

// Answers to control commands.
const (
	CtrlOK  = 0
	CtrlErr = 1
)

var ctrlNames = map[[2]uint8]string{
	{CtrlRX, CtrlRXPromisc}: "RX/PROMISC", {CtrlRX, CtrlRXAllMulti}: "RX/ALLMULTI",
	{CtrlRX, CtrlRXAllUni}: "RX/ALLUNI", {CtrlRX, CtrlRXNoMulti}: "RX/NOMULTI",
	{CtrlRX, CtrlRXNoUni}: "RX/NOUNI", {CtrlRX, CtrlRXNoBcast}: "RX/NOBCAST",
	{CtrlMAC, CtrlMACTableSet}: "MAC/TABLE_SET", {CtrlMAC, CtrlMACAddrSet}: "MAC/ADDR_SET",
	{CtrlVLAN, CtrlVLANAdd}: "VLAN/ADD", {CtrlVLAN, CtrlVLANDel}: "VLAN/DEL",
	{CtrlAnnounce, CtrlAnnounceAck}: "ANNOUNCE/ACK", {CtrlMQ, CtrlMQVQPairsSet}: "MQ/VQ_PAIRS_SET",
	{CtrlMQ, CtrlMQRSSConfig}: "MQ/RSS_CONFIG", {CtrlMQ, CtrlMQHashConfig}: "MQ/HASH_CONFIG",
	{CtrlGuestOffloads, CtrlGuestOffloadsSet}: "GUEST_OFFLOADS/SET",
	{CtrlNotfCoal, CtrlNotfCoalTXSet}:         "NOTF_COAL/TX_SET", {CtrlNotfCoal, CtrlNotfCoalRXSet}: "NOTF_COAL/RX_SET",
	{CtrlNotfCoal, CtrlNotfCoalVQSet}: "NOTF_COAL/VQ_SET", {CtrlNotfCoal, CtrlNotfCoalVQGet}: "NOTF_COAL/VQ_GET",
	{CtrlStats, CtrlStatsQuery}: "STATS/QUERY", {CtrlStats, CtrlStatsGet}: "STATS/GET",
}

// CtrlName returns the name of a control command, "NOTF_COAL/VQ_SET" for example,
// or its two numbers.
func CtrlName(class, command uint8) string {
	if n := ctrlNames[[2]uint8{class, command}]; n != "" {
		return n
	}
	return strconv.Itoa(int(class)) + "/" + strconv.Itoa(int(command))
}
