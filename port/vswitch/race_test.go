//go:build race

package vswitch_test

const raceEnabled = true
