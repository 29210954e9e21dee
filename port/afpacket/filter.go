package afpacket

import (
	"golang.org/x/sys/unix"
)

// What linux/filter.h calls ancillary data.
const (
	adOff      = 0xfffff000 // SKF_AD_OFF
	adProtocol = adOff + 0
	adPktType  = adOff + 4

	etherIPv4 = 0x0800
	etherIPv6 = 0x86DD
)

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(code uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k}
}

const (
	ldw   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	ldh   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	ldb   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	ldwx  = unix.BPF_LD | unix.BPF_W | unix.BPF_IND
	ldm   = unix.BPF_LD | unix.BPF_MEM
	ldxm  = unix.BPF_LDX | unix.BPF_MEM
	ldxih = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
	st    = unix.BPF_ST
	tax   = unix.BPF_MISC | unix.BPF_TAX
	xorx  = unix.BPF_ALU | unix.BPF_XOR | unix.BPF_X
	rsh   = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
	mulk  = unix.BPF_ALU | unix.BPF_MUL | unix.BPF_K
	modk  = unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K
	jeq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jset  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ja    = unix.BPF_JMP | unix.BPF_JA
	retk  = unix.BPF_RET | unix.BPF_K
	reta  = unix.BPF_RET | unix.BPF_A
)

var (
	// nothing is the filter of a queue that is not in use.
	nothing = []unix.SockFilter{stmt(retk, 0)}
	// incoming leaves out what goes out through the interface; in a fanout group
	// not every kernel knows how to do that by itself.
	incoming = []unix.SockFilter{
		stmt(ldw, adPktType),
		jump(jeq, unix.PACKET_OUTGOING, 0, 1),
		stmt(retk, 0),
		stmt(retk, 0xffffffff),
	}
)

// spread is the program of a fanout group: it returns, for a frame that begins with
// its network header, one of the sockets in active, at least one and at most 256. The
// addresses and the ports of TCP and UDP are combined so that both directions of a
// flow have the same; a load beyond the frame's end ends the program with 0, the
// group's first socket.
func spread(active []int) []unix.SockFilter {
	// IPv4: addresses, and ports behind a header of any length.
	v4 := []unix.SockFilter{
		stmt(ldw, 12), stmt(tax, 0), stmt(ldw, 16), stmt(xorx, 0), stmt(st, 0),
		stmt(ldh, 6), jump(jset, 0x3fff, 7, 0), // fragments have no ports
		stmt(ldb, 9), jump(jeq, unix.IPPROTO_TCP, 1, 0), jump(jeq, unix.IPPROTO_UDP, 0, 4),
		stmt(ldxih, 0), stmt(ldwx, 0), stmt(st, 1), stmt(ja, 2),
		// without ports
		stmt(unix.BPF_LD|unix.BPF_IMM, 0), stmt(st, 1),
	}
	// IPv6: addresses, and ports right behind the header.
	v6 := []unix.SockFilter{stmt(ldw, 8)}
	for at := uint32(12); at < 40; at += 4 {
		v6 = append(v6, stmt(tax, 0), stmt(ldw, at), stmt(xorx, 0))
	}
	v6 = append(v6, stmt(st, 0),
		stmt(ldb, 6), jump(jeq, unix.IPPROTO_TCP, 1, 0), jump(jeq, unix.IPPROTO_UDP, 0, 3),
		stmt(ldw, 40), stmt(st, 1), stmt(ja, 2),
		stmt(unix.BPF_LD|unix.BPF_IMM, 0), stmt(st, 1))
	hash := []unix.SockFilter{
		// The halves of the ports, and the sum of both on top of the addresses.
		stmt(ldm, 1), stmt(rsh, 16), stmt(tax, 0), stmt(ldm, 1), stmt(xorx, 0),
		stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0xffff), stmt(mulk, 0x9e3779b1),
		stmt(ldxm, 0), stmt(xorx, 0), stmt(mulk, 0x85ebca6b),
		stmt(st, 2), stmt(rsh, 15), stmt(tax, 0), stmt(ldm, 2), stmt(xorx, 0), stmt(mulk, 0xc2b2ae35), stmt(rsh, 8),
		stmt(modk, uint32(len(active))),
	}
	for i, to := range active {
		hash = append(hash, jump(jeq, uint32(i), 0, 1), stmt(retk, uint32(to)))
	}
	hash = append(hash, stmt(retk, uint32(active[0])))
	other := stmt(retk, uint32(active[0]))

	prog := []unix.SockFilter{
		stmt(ldw, adProtocol),
		jump(jeq, etherIPv4, 3, 0),
		jump(jeq, etherIPv6, 1, 0),
		other,
		stmt(ja, uint32(len(v4)+1)), // to v6
	}
	prog = append(prog, v4...)
	prog = append(prog, stmt(ja, uint32(len(v6))))
	prog = append(prog, v6...)
	return append(prog, hash...)
}
