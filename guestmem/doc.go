// Package guestmem maps the memory that a front-end shares with the device, and
// is the only code that touches it through unsafe pointers.
//
// A [Map] is an immutable, reference-counted table of regions. It translates the
// guest's addresses (descriptors) and the front-end's (rings) to slices. A new
// table is a new Map; the old one is unmapped when its last user lets go.
//
// A [View] reads and writes fields that both sides change at the same time.
// Every access is an atomic one of the aligned word that holds the field, since
// Go has no atomics of 16 bits and may split or repeat plain accesses.
//
// Guest memory can vanish: a front-end may shrink its file. [CatchFaults] turns
// the fault into an error.
//
// A [Log] is the dirty log in which a back-end notes what it writes while the guest
// migrates.
//
// The regions are those of the vhost-user messages SET_MEM_TABLE, ADD_MEM_REG
// and REM_MEM_REG.
package guestmem
