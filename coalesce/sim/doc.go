// Package sim runs moderation engines against a model of a device, a guest and
// their traffic, in virtual time.
//
// The device's half is what decides: [coalesce.Moderator] and
// [coalesce.Engine] themselves, driven as a worker of a virtio-net device
// drives them, with a model of the used ring's event index (virtio 1.4, "Used
// Buffer Notification Suppression") between them and the guest. The guest is
// a driver that is woken by a notification, pays for the interrupt, polls with a
// budget, and asks for notifications again when it finds nothing more. What
// things cost is in [Params].
//
// A run depends on its arguments alone: there is no clock, no goroutine, and all
// chance comes from a seed. The traffic does not depend on the engine, except
// where it reacts to how fast the guest answers.
package sim
