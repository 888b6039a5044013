// Package controllers holds the operator's reconcilers.
//
// QueueDatabases and JobQueues have one reconciler each. Both go the same way:
// observe (an immutable value gathered from caches and from the sampler's
// published state), plan (the pure packages scaling and budget), apply (server-
// side apply, and one write of the status at the end, if it changed). No
// reconcile waits for a database: package sampler does all work on them.
package controllers
