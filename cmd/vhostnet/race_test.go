//go:build race

package main

// raceDetector tells that memory is not what it would be.
const raceDetector = true
