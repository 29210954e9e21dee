// Package fleet owns the devices of a process: it opens, serves and closes each
// of them without a word to the others, while the process runs.
//
// A device is described by a [Definition]: a name, a configuration that can be
// compared, and how to open it. [Fleet.Apply] takes the definitions of a file and
// brings the fleet in line with them: devices whose configuration is what it was
// are left alone. [Fleet.Add] and [Fleet.Remove] are for single devices, whoever
// asks for them.
//
// A device that fails takes nobody down. It stays in the fleet with its error,
// for the status API to show, and is tried again by the next Apply.
//
// What a device is made of is not known here: tests run fleets of fake ones.
package fleet
