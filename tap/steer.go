package tap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
)

// steering is an eBPF program that puts frames on the TAP's queues, and the memory
// that it reads.
type steering struct {
	s    port.Steering
	m    *ebpf.Map
	prog *ebpf.Program
	// value is the map's only value: for each byte of an input what it adds to
	// the hash, then for each entry of the indirection table, and for frames
	// without a hash, the queue's index in the kernel.
	value []byte
}

const (
	wordLen    = 4
	byteTable  = 256 * wordLen
	indexTable = toeplitz.MaxInput * byteTable
)

// Steer makes the kernel put frames on the queues that s names, with an eBPF program
// (TUNSETSTEERINGEBPF), or spread them by its own rules with nil. That takes CAP_BPF
// or CAP_SYS_ADMIN where unprivileged programs are forbidden. Frames with IPv6
// extension headers go to the queue for those without a hash. When it fails, the kernel
// goes on by its own rules.
func (p *Port) Steer(s *port.Steering) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("tap: steer %s: %w", p.name, unix.EBADF)
	}
	if s == nil || !p.multi {
		return p.unsteer()
	}
	n, err := newSteering(*s, ebpf.SocketFilter)
	if err == nil {
		err = n.refresh(p.order)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(p.queues[0].fd, unix.TUNSETSTEERINGEBPF, n.prog.FD())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("tap: steer %s: %w", p.name, err), n.close(), p.unsteer())
	}
	old := p.steering
	p.steering = n
	return old.close()
}

// unsteer takes the program away. p.mu is held.
func (p *Port) unsteer() error {
	if p.steering == nil {
		return nil
	}
	old := p.steering
	p.steering = nil
	if err := unix.IoctlSetPointerInt(p.queues[0].fd, unix.TUNSETSTEERINGEBPF, -1); err != nil {
		return errors.Join(fmt.Errorf("tap: steer %s: %w", p.name, err), old.close())
	}
	return old.close()
}

// move does to order, the queues by their index in the kernel, what the kernel does
// when queue i is attached or detached: the last one fills a gap.
func move(order []int, i int, on bool) []int {
	if on {
		return append(order, i)
	}
	for at, q := range order {
		if q == i {
			order[at] = order[len(order)-1]
			return order[:len(order)-1]
		}
	}
	return order
}

func newSteering(s port.Steering, kind ebpf.ProgramType) (*steering, error) {
	n := &steering{s: s, value: make([]byte, indexTable+wordLen*(len(s.Table)+1))}
	h := toeplitz.New(s.Key)
	for i := range toeplitz.MaxInput {
		for b := range 256 {
			binary.NativeEndian.PutUint32(n.value[i*byteTable+b*wordLen:], h.Table(i, byte(b)))
		}
	}
	var err error
	n.m, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "vhostnet_rss", Type: ebpf.Array, KeySize: wordLen, ValueSize: uint32(len(n.value)), MaxEntries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	n.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "vhostnet_rss", Type: kind, License: "Apache-2.0", Instructions: program(&s, n.m.FD()),
	})
	if err != nil {
		return n, fmt.Errorf("program: %w", err)
	}
	return n, nil
}

// refresh tells the program at which indices the kernel has the queues. One that is
// detached gets nothing; its frames go to the first, from where they are handed on.
func (n *steering) refresh(order []int) error {
	index := make(map[int]uint32, len(order))
	for at, q := range order {
		index[q] = uint32(at)
	}
	for i, q := range append(append([]uint16{}, n.s.Table...), n.s.Unclassified) {
		binary.NativeEndian.PutUint32(n.value[indexTable+wordLen*i:], index[int(q)])
	}
	if err := n.m.Put(uint32(0), n.value); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	return nil
}

func (n *steering) close() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.prog.Close(), n.m.Close())
}

// Registers of the program. LD_IND takes the packet from R6 and spoils R0 to R5.
const (
	regPacket = asm.R6
	regIP     = asm.R7 // where the IP header is
	regPorts  = asm.R8 // where the ports are
	regHash   = asm.R9
)

// program hashes what toeplitz.Parse would find in a frame, but for IPv6 packets
// with extension headers. A load from beyond the frame's end ends it with 0.
func program(s *port.Steering, m int) asm.Instructions {
	g := generator{m: m}
	on := func(t uint32) bool { return s.Types&t != 0 }
	const half, word = asm.Half, asm.Word
	g.add(asm.Mov.Reg(regPacket, asm.R1), asm.Mov.Imm(regHash, 0), asm.Mov.Imm(regIP, 12))
	for range 2 {
		g.add(asm.LoadInd(asm.R0, regIP, 0, half))
		untagged, tagged := g.label(), g.label()
		g.add(
			asm.JEq.Imm(asm.R0, 0x8100, tagged), asm.JNE.Imm(asm.R0, 0x88a8, untagged),
			asm.Add.Imm(regIP, 4).WithSymbol(tagged),
		)
		g.next(untagged)
	}
	g.add(
		asm.LoadInd(asm.R0, regIP, 0, half), asm.Add.Imm(regIP, 2),
		asm.JEq.Imm(asm.R0, 0x0800, "v4"), asm.JEq.Imm(asm.R0, 0x86dd, "v6"), asm.Ja.Label("none"),
	)
	ip := func(family string, types uint32) {
		if on(types) {
			g.add(asm.Ja.Label(family + "ip"))
		} else {
			g.add(asm.Ja.Label("none"))
		}
	}

	g.next("v4")
	g.add(
		asm.LoadInd(asm.R0, regIP, 0, asm.Byte), asm.Mov.Reg(regPorts, asm.R0),
		asm.RSh.Imm(asm.R0, 4), asm.JNE.Imm(asm.R0, 4, "none"),
		asm.And.Imm(regPorts, 15), asm.LSh.Imm(regPorts, 2), asm.JLT.Imm(regPorts, 20, "none"),
		asm.Add.Reg(regPorts, regIP),
		asm.LoadInd(asm.R0, regIP, 6, half), asm.And.Imm(asm.R0, 0x3fff), asm.JNE.Imm(asm.R0, 0, "v4whole"),
		asm.LoadInd(asm.R0, regIP, 9, asm.Byte),
	)
	if on(toeplitz.TCPv4) {
		g.add(asm.JEq.Imm(asm.R0, unix.IPPROTO_TCP, "v4ports"))
	}
	if on(toeplitz.UDPv4) {
		g.add(asm.JEq.Imm(asm.R0, unix.IPPROTO_UDP, "v4ports"))
	}
	g.next("v4whole")
	ip("v4", toeplitz.IPv4)
	if on(toeplitz.TCPv4 | toeplitz.UDPv4) {
		g.next("v4ports")
		g.hash(regIP, 12, 0, 2)
		g.hash(regPorts, 0, 8, 1)
		g.add(asm.Ja.Label("found"))
	}
	if on(toeplitz.IPv4) {
		g.next("v4ip")
		g.hash(regIP, 12, 0, 2)
		g.add(asm.Ja.Label("found"))
	}

	g.next("v6")
	g.add(
		asm.LoadInd(asm.R0, regIP, 0, asm.Byte), asm.RSh.Imm(asm.R0, 4), asm.JNE.Imm(asm.R0, 6, "none"),
		asm.LoadInd(asm.R0, regIP, 6, asm.Byte),
	)
	for _, extension := range []int32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH} {
		g.add(asm.JEq.Imm(asm.R0, extension, "none"))
	}
	if on(toeplitz.TCPv6) {
		g.add(asm.JEq.Imm(asm.R0, unix.IPPROTO_TCP, "v6ports"))
	}
	if on(toeplitz.UDPv6) {
		g.add(asm.JEq.Imm(asm.R0, unix.IPPROTO_UDP, "v6ports"))
	}
	ip("v6", toeplitz.IPv6)
	if on(toeplitz.TCPv6 | toeplitz.UDPv6) {
		g.next("v6ports")
		g.hash(regIP, 8, 0, 9)
		g.add(asm.Ja.Label("found"))
	}
	if on(toeplitz.IPv6) {
		g.next("v6ip")
		g.hash(regIP, 8, 0, 8)
		g.add(asm.Ja.Label("found"))
	}

	g.next("none")
	g.add(
		asm.LoadMapValue(asm.R1, m, uint32(indexTable+wordLen*len(s.Table))),
		asm.LoadMem(asm.R0, asm.R1, 0, word), asm.Return(),
	)
	if on(toeplitz.TCPv4 | toeplitz.UDPv4 | toeplitz.IPv4 | toeplitz.TCPv6 | toeplitz.UDPv6 | toeplitz.IPv6) {
		g.next("found")
		g.add(
			asm.And.Imm(regHash, int32(len(s.Table)-1)), asm.LSh.Imm(regHash, 2),
			asm.LoadMapValue(asm.R1, m, indexTable), asm.Add.Reg(asm.R1, regHash),
			asm.LoadMem(asm.R0, asm.R1, 0, word), asm.Return(),
		)
	}
	return g.code
}

// generator writes a program.
type generator struct {
	m      int
	code   asm.Instructions
	symbol string // of the next instruction
	labels int
}

func (g *generator) add(code ...asm.Instruction) {
	if g.symbol != "" {
		code[0] = code[0].WithSymbol(g.symbol)
		g.symbol = ""
	}
	g.code = append(g.code, code...)
}

// next puts a label in front of the next instruction. Two in a row need something
// between them.
func (g *generator) next(label string) {
	if g.symbol != "" {
		g.add(asm.Mov.Reg(asm.R0, asm.R0))
	}
	g.symbol = label
}

func (g *generator) label() string {
	g.labels++
	return fmt.Sprintf("l%d", g.labels)
}

// hash adds so many 32-bit words of the packet, at base and off, to the hash; the
// first is at position at of the input.
func (g *generator) hash(base asm.Register, off int32, at, words int) {
	for w := range words {
		g.add(
			asm.LoadInd(asm.R0, base, off+int32(w*wordLen), asm.Word),
			asm.LoadMapValue(asm.R2, g.m, uint32((at+w*wordLen)*byteTable)),
		)
		for b := range wordLen {
			g.add(
				asm.Mov.Reg(asm.R1, asm.R0), asm.RSh.Imm(asm.R1, int32(24-8*b)), asm.And.Imm(asm.R1, 0xff),
				asm.LSh.Imm(asm.R1, 2), asm.Add.Reg(asm.R1, asm.R2),
				asm.LoadMem(asm.R3, asm.R1, int16(b*byteTable), asm.Word), asm.Xor.Reg(regHash, asm.R3),
			)
		}
	}
}
