package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Garbage between two collections is a quarter of what is alive, and at least room: large models and files stay near what they take, and a
// process of a few megabytes does not spend its time in collecting (four fifths of verify dump on a small dump).
const (
	part = 25       // percent
	room = 12 << 20 // bytes
)

// pace keeps to that from one collection to the next, unless GOGC is set. Who sets another percentage while a command runs has it.
func pace() {
	if os.Getenv("GOGC") != "" {
		return
	}
	set := percent(0)
	debug.SetGCPercent(set)
	var again func(*[16]byte)
	again = func(x *[16]byte) { // runs after every collection
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		set = adjust(set, live[0].Value.Uint64())
		runtime.SetFinalizer(x, again)
	}
	runtime.SetFinalizer(new([16]byte), again)
}

// adjust sets the percentage for what is alive, unless it is not the one that was set last, and returns the one set last.
func adjust(set int, live uint64) int {
	next := percent(live)
	if was := debug.SetGCPercent(next); was != set {
		debug.SetGCPercent(was)
		return set
	}
	return next
}

// percent is the heap's growth until the next collection, in percent of what was alive after the last.
func percent(live uint64) int {
	const least = 4 << 20 // the runtime collects no smaller heap
	return int(max(part, 100*room/max(live, least)))
}
