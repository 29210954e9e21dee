// Command cmd fills the cache of the guest tests and prints where things are.
package main
