// Package faults has no code but tests: faults that other back-ends had, each as
// a scripted front-end against a vhostnet process. Each case ends with the
// process alive: nothing on its standard error that a crash or the race detector
// writes, a fresh connection that carries frames, and no descriptor or mapping
// left.
package faults
