package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/vhostnet/vhostnet/internal/unixsock"
)

// Request is the type of a message.
type Request uint32

// Requests of the front-end.
const (
	ReqGetFeatures         Request = 1
	ReqSetFeatures         Request = 2
	ReqSetOwner            Request = 3
	ReqResetOwner          Request = 4
	ReqSetMemTable         Request = 5
	ReqSetLogBase          Request = 6
	ReqSetLogFD            Request = 7
	ReqSetVringNum         Request = 8
	ReqSetVringAddr        Request = 9
	ReqSetVringBase        Request = 10
	ReqGetVringBase        Request = 11
	ReqSetVringKick        Request = 12
	ReqSetVringCall        Request = 13
	ReqSetVringErr         Request = 14
	ReqGetProtocolFeatures Request = 15
	ReqSetProtocolFeatures Request = 16
	ReqGetQueueNum         Request = 17
	ReqSetVringEnable      Request = 18
	ReqSendRARP            Request = 19
	ReqNetSetMTU           Request = 20
	ReqSetBackendReqFD     Request = 21
	ReqIOTLBMsg            Request = 22
	ReqSetVringEndian      Request = 23
	ReqGetConfig           Request = 24
	ReqSetConfig           Request = 25
	ReqPostcopyAdvise      Request = 28
	ReqPostcopyListen      Request = 29
	ReqPostcopyEnd         Request = 30
	ReqGetInflightFD       Request = 31
	ReqSetInflightFD       Request = 32
	ReqResetDevice         Request = 34
	ReqVringKick           Request = 35
	ReqGetMaxMemSlots      Request = 36
	ReqAddMemReg           Request = 37
	ReqRemMemReg           Request = 38
	ReqSetStatus           Request = 39
	ReqGetStatus           Request = 40
	ReqSetDeviceStateFD    Request = 42
	ReqCheckDeviceState    Request = 43
	ReqGetShmemConfig      Request = 44
)

var requestNames = map[Request]string{
	ReqGetFeatures: "GET_FEATURES", ReqSetFeatures: "SET_FEATURES", ReqSetOwner: "SET_OWNER",
	ReqResetOwner: "RESET_OWNER", ReqSetMemTable: "SET_MEM_TABLE", ReqSetLogBase: "SET_LOG_BASE",
	ReqSetLogFD: "SET_LOG_FD", ReqSetVringNum: "SET_VRING_NUM", ReqSetVringAddr: "SET_VRING_ADDR",
	ReqSetVringBase: "SET_VRING_BASE", ReqGetVringBase: "GET_VRING_BASE", ReqSetVringKick: "SET_VRING_KICK",
	ReqSetVringCall: "SET_VRING_CALL", ReqSetVringErr: "SET_VRING_ERR",
	ReqGetProtocolFeatures: "GET_PROTOCOL_FEATURES", ReqSetProtocolFeatures: "SET_PROTOCOL_FEATURES",
	ReqGetQueueNum: "GET_QUEUE_NUM", ReqSetVringEnable: "SET_VRING_ENABLE", ReqSendRARP: "SEND_RARP",
	ReqNetSetMTU: "NET_SET_MTU", ReqSetBackendReqFD: "SET_BACKEND_REQ_FD", ReqIOTLBMsg: "IOTLB_MSG",
	ReqSetVringEndian: "SET_VRING_ENDIAN", ReqGetConfig: "GET_CONFIG", ReqSetConfig: "SET_CONFIG",
	ReqPostcopyAdvise: "POSTCOPY_ADVISE", ReqPostcopyListen: "POSTCOPY_LISTEN", ReqPostcopyEnd: "POSTCOPY_END",
	ReqGetInflightFD: "GET_INFLIGHT_FD", ReqSetInflightFD: "SET_INFLIGHT_FD", ReqResetDevice: "RESET_DEVICE",
	ReqVringKick: "VRING_KICK", ReqGetMaxMemSlots: "GET_MAX_MEM_SLOTS", ReqAddMemReg: "ADD_MEM_REG",
	ReqRemMemReg: "REM_MEM_REG", ReqSetStatus: "SET_STATUS", ReqGetStatus: "GET_STATUS",
	ReqSetDeviceStateFD: "SET_DEVICE_STATE_FD", ReqCheckDeviceState: "CHECK_DEVICE_STATE",
	ReqGetShmemConfig: "GET_SHMEM_CONFIG",
}

// String returns the request's name in the protocol document, or its number.
func (r Request) String() string {
	if n := requestNames[r]; n != "" {
		return n
	}
	return "request " + strconv.FormatUint(uint64(r), 10)
}

// BackendReqConfigChange is the request CONFIG_CHANGE_MSG of the back-end.
const BackendReqConfigChange Request = 2

// Flags of a header. Its lowest two bits are the protocol's version, 1.
const (
	FlagVersion   = 1
	FlagReply     = 1 << 2
	FlagNeedReply = 1 << 3
	versionMask   = 3
)

// HeaderSize is the size of a header in bytes.
const HeaderSize = 12

// MaxPayload is the largest payload in bytes that is read. The largest that the
// protocol has is a memory table of 264 bytes or a configuration of 268.
const MaxPayload = 4096

// Header begins each message.
type Header struct {
	Request Request
	Flags   uint32
	// Size is the length of the payload in bytes.
	Size uint32
}

var ne = binary.NativeEndian

// Encode writes the header to b, which has at least HeaderSize bytes.
func (h Header) Encode(b []byte) {
	ne.PutUint32(b, uint32(h.Request))
	ne.PutUint32(b[4:], h.Flags)
	ne.PutUint32(b[8:], h.Size)
}

// DecodeHeader reads a header from b, which has at least HeaderSize bytes. The
// error wraps [ErrProtocol] if it cannot be one.
func DecodeHeader(b []byte) (Header, error) {
	h := Header{Request(ne.Uint32(b)), ne.Uint32(b[4:]), ne.Uint32(b[8:])}
	switch {
	case h.Flags&versionMask != FlagVersion:
		return h, violation("version", "%s: version %d", h.Request, h.Flags&versionMask)
	case h.Size > MaxPayload:
		return h, violation("size", "%s: payload of %d bytes", h.Request, h.Size)
	}
	return h, nil
}

// Errors.
var (
	// ErrProtocol: a message cannot be understood. The connection is ended.
	ErrProtocol = errors.New("vhostuser: protocol violation")
	// ErrRefused: a request cannot be carried out. The connection goes on.
	ErrRefused = errors.New("vhostuser: request refused")
	// ErrInUse: somebody answers on the socket already.
	ErrInUse = unixsock.ErrInUse
)

// protocolError is an [ErrProtocol] with the name that it is counted by.
type protocolError struct {
	reason string
	err    error
}

func (e *protocolError) Error() string   { return ErrProtocol.Error() + ": " + e.err.Error() }
func (e *protocolError) Unwrap() []error { return []error{ErrProtocol, e.err} }

func violation(reason, format string, args ...any) error {
	return &protocolError{reason, fmt.Errorf(format, args...)}
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}
