package vhostuser

// row says what a request looks like.
type row struct {
	// min and max bound the payload in bytes.
	min, max int
	// fds is the most descriptors that it takes.
	fds int
	// reply: it has a reply of its own.
	reply bool
	// needs is the protocol feature without which it may not be sent.
	needs ProtocolFeatures
	do    func(*session, *message) ([]byte, error)
}

const (
	u64Size    = 8
	stateSize  = 8
	addrSize   = 40
	logSize    = 16
	regionSize = 32
	configHead = 12
	// maxConfig is the largest configuration space (struct VhostUserConfig).
	maxConfig = 256
)

// requests is what the back-end understands. What is not here is refused. Those
// without a payload may come with a number that means nothing: some front-ends
// send one.
var requests map[Request]row

func init() {
	requests = map[Request]row{
		ReqGetFeatures:         {max: u64Size, reply: true, do: (*session).getFeatures},
		ReqSetFeatures:         {min: u64Size, max: u64Size, do: (*session).setFeatures},
		ReqSetOwner:            {max: u64Size, do: nothing},
		ReqResetOwner:          {max: u64Size, do: (*session).resetOwner},
		ReqSetMemTable:         {min: 8, max: 8 + 8*regionSize, fds: 8, do: (*session).setMemTable},
		ReqSetLogBase:          {min: logSize, max: logSize, fds: 1, needs: ProtocolLogSHMFD, do: (*session).setLogBase},
		ReqSetLogFD:            {max: u64Size, fds: 1, needs: ProtocolLogSHMFD, do: (*session).setLogFD},
		ReqSetVringNum:         {min: stateSize, max: stateSize, do: (*session).setVringNum},
		ReqSetVringAddr:        {min: addrSize, max: addrSize, do: (*session).setVringAddr},
		ReqSetVringBase:        {min: stateSize, max: stateSize, do: (*session).setVringBase},
		ReqGetVringBase:        {min: stateSize, max: stateSize, reply: true, do: (*session).getVringBase},
		ReqSetVringKick:        {min: u64Size, max: u64Size, fds: 1, do: (*session).setVringKick},
		ReqSetVringCall:        {min: u64Size, max: u64Size, fds: 1, do: (*session).setVringCall},
		ReqSetVringErr:         {min: u64Size, max: u64Size, fds: 1, do: (*session).setVringErr},
		ReqGetProtocolFeatures: {max: u64Size, reply: true, do: (*session).getProtocolFeatures},
		ReqSetProtocolFeatures: {min: u64Size, max: u64Size, do: (*session).setProtocolFeatures},
		ReqGetQueueNum:         {max: u64Size, reply: true, do: (*session).getQueueNum},
		ReqSetVringEnable:      {min: stateSize, max: stateSize, do: (*session).setVringEnable},
		ReqSendRARP:            {min: u64Size, max: u64Size, needs: ProtocolRARP, do: (*session).sendRARP},
		ReqNetSetMTU:           {min: u64Size, max: u64Size, needs: ProtocolMTU, do: (*session).setMTU},
		ReqSetBackendReqFD:     {max: u64Size, fds: 1, needs: ProtocolBackendReq, do: (*session).setBackendReqFD},
		ReqGetConfig:           {min: configHead, max: MaxPayload, reply: true, needs: ProtocolConfig, do: (*session).getConfig},
		ReqSetConfig:           {min: configHead, max: configHead + maxConfig, needs: ProtocolConfig, do: (*session).setConfig},
		ReqResetDevice:         {max: u64Size, needs: ProtocolResetDevice, do: (*session).resetDevice},
		ReqGetMaxMemSlots:      {max: u64Size, reply: true, needs: ProtocolConfigureMemSlots, do: (*session).getMaxMemSlots},
		ReqAddMemReg:           {min: 8 + regionSize, max: 8 + regionSize, fds: 1, needs: ProtocolConfigureMemSlots, do: (*session).addMemReg},
		ReqRemMemReg:           {min: 8 + regionSize, max: 8 + regionSize, fds: 1, needs: ProtocolConfigureMemSlots, do: (*session).remMemReg},
		ReqSetStatus:           {min: u64Size, max: u64Size, needs: ProtocolStatus, do: (*session).setStatus},
		ReqGetStatus:           {max: u64Size, reply: true, needs: ProtocolStatus, do: (*session).getStatus},
	}
}

func nothing(*session, *message) ([]byte, error) { return nil, nil }
