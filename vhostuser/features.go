package vhostuser

import (
	"math/bits"
	"strconv"
	"strings"
)

// ProtocolFeatures is a set of VHOST_USER_PROTOCOL_F bits.
type ProtocolFeatures uint64

// Protocol features.
const (
	ProtocolMQ                    ProtocolFeatures = 1 << 0
	ProtocolLogSHMFD              ProtocolFeatures = 1 << 1
	ProtocolRARP                  ProtocolFeatures = 1 << 2
	ProtocolReplyAck              ProtocolFeatures = 1 << 3
	ProtocolMTU                   ProtocolFeatures = 1 << 4
	ProtocolBackendReq            ProtocolFeatures = 1 << 5
	ProtocolCrossEndian           ProtocolFeatures = 1 << 6
	ProtocolCryptoSession         ProtocolFeatures = 1 << 7
	ProtocolPageFault             ProtocolFeatures = 1 << 8
	ProtocolConfig                ProtocolFeatures = 1 << 9
	ProtocolBackendSendFD         ProtocolFeatures = 1 << 10
	ProtocolHostNotifier          ProtocolFeatures = 1 << 11
	ProtocolInflightSHMFD         ProtocolFeatures = 1 << 12
	ProtocolResetDevice           ProtocolFeatures = 1 << 13
	ProtocolInbandNotifications   ProtocolFeatures = 1 << 14
	ProtocolConfigureMemSlots     ProtocolFeatures = 1 << 15
	ProtocolStatus                ProtocolFeatures = 1 << 16
	ProtocolXenMmap               ProtocolFeatures = 1 << 17
	ProtocolSharedObject          ProtocolFeatures = 1 << 18
	ProtocolDeviceState           ProtocolFeatures = 1 << 19
	ProtocolGetVringBaseInflight  ProtocolFeatures = 1 << 20
	ProtocolGPAAddresses          ProtocolFeatures = 1 << 21
	ProtocolSHMEM                 ProtocolFeatures = 1 << 22
	ProtocolGetVringBaseSkipDrain ProtocolFeatures = 1 << 23
)

var protocolNames = [...]string{
	"MQ", "LOG_SHMFD", "RARP", "REPLY_ACK", "MTU", "BACKEND_REQ", "CROSS_ENDIAN", "CRYPTO_SESSION",
	"PAGEFAULT", "CONFIG", "BACKEND_SEND_FD", "HOST_NOTIFIER", "INFLIGHT_SHMFD", "RESET_DEVICE",
	"INBAND_NOTIFICATIONS", "CONFIGURE_MEM_SLOTS", "STATUS", "XEN_MMAP", "SHARED_OBJECT", "DEVICE_STATE",
	"GET_VRING_BASE_INFLIGHT", "GPA_ADDRESSES", "SHMEM", "GET_VRING_BASE_SKIP_DRAIN",
}

// Names returns the names of the bits in f, without their common prefix, lowest
// bit first. It is never nil.
func (f ProtocolFeatures) Names() []string {
	names := make([]string, 0, bits.OnesCount64(uint64(f)))
	for b := f; b != 0; b &= b - 1 {
		if n := bits.TrailingZeros64(uint64(b)); n < len(protocolNames) {
			names = append(names, protocolNames[n])
		} else {
			names = append(names, "BIT_"+strconv.Itoa(n))
		}
	}
	return names
}

// String returns the names joined by commas.
func (f ProtocolFeatures) String() string { return strings.Join(f.Names(), ",") }
