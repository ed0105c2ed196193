// Package ptxsim runs the PTX text of a CUDA kernel without a GPU, one thread's arithmetic at a time, and watches what no GPU shows:
// accesses outside of an allocation or not aligned, reads of what nothing has written, threads of a block or of two blocks that touch the
// same bytes with no barrier between them, barriers that not all threads reach, asynchronous copies that are read before they were
// waited for, and lanes that read a register of a lane that is not there.
//
// A module is parsed once, each instruction to a closure over the 32 lanes of a warp. Whole spellings are known, with all their
// modifiers: one that is not is an error that names line and text, never something ignored. A warp runs until it ends or waits at a
// barrier; where its lanes part, those with the lowest instruction go first, so that they meet again where the compiler's blocks do.
// Blocks run one after the other.
//
// The numbers are those of the PTX ISA 9.0: additions, products, divisions, roots and conversions round to nearest even, subnormal
// numbers are kept, integers wrap. Where the ISA leaves the value open, one model is taken: ex2.approx and lg2.approx are rounded from
// float64 (see [Options].Approx for the other values a device may return), and mma in bfloat16 adds the products of eight steps of k
// exactly to the accumulator and rounds once.
package ptxsim

import (
	"fmt"
	"strings"
)

// Options say how a kernel is run. The zero value checks everything, in the forward schedule.
type Options struct {
	Reverse bool         // warps of a block run from the last to the first
	Lazy    bool         // an asynchronous copy happens when it is waited for, not when it is started
	Approx  Approx       // which of the values that the ISA allows ex2.approx and lg2.approx return
	Reached map[int]bool // where not nil, the lines of the text that ran for some lane
	Budget  uint64       // warp instructions after which a launch is given up as endless; 0: 4e9
}

// Schedules are the four orders in which a kernel must give the same bits.
var Schedules = []Options{{}, {Reverse: true}, {Lazy: true}, {Reverse: true, Lazy: true}}

// Approx chooses among the values that the ISA allows an approximate instruction to return.
type Approx int

// The nearest number, or the ends of the documented error of 2⁻²² of ex2.approx (relative) and lg2.approx (absolute, for
// results below 1 in magnitude, else relative).
const (
	Nearest Approx = iota
	Lowest
	Highest
)

// Kind says which rule a kernel broke.
type Kind string

// What the simulator finds.
const (
	Bounds        Kind = "bounds"        // no allocation holds these bytes
	Misaligned    Kind = "misaligned"    // the address is no multiple of the width
	Uninitialised Kind = "uninitialised" // nothing has written this register or these bytes
	Race          Kind = "race"          // two threads, one of them writing, with no barrier between
	Barrier       Kind = "barrier"       // a barrier that not all threads of the block, or of the warp, reach
	Async         Kind = "async"         // bytes of an asynchronous copy that was not waited for
	Inactive      Kind = "inactive"      // a lane that is not there, or a mask that names other lanes than those that run
	Endless       Kind = "endless"       // the budget of instructions is used up
)

// Finding is a rule that a kernel broke, and where. It is an error.
type Finding struct {
	Kind    Kind
	Kernel  string
	Block   [3]int
	Thread  [3]int
	Address uint64 // of the access, where there is one
	Line    int    // of the PTX text
	Text    string // that line
	What    string
}

func (f *Finding) Error() string {
	return fmt.Sprintf("ptxsim: %s: kernel %s, block (%d,%d,%d), thread (%d,%d,%d), address %#x, line %d: %s: %s", f.Kind, f.Kernel,
		f.Block[0], f.Block[1], f.Block[2], f.Thread[0], f.Thread[1], f.Thread[2], f.Address, f.Line, strings.TrimSpace(f.Text), f.What)
}

// Stats count what a launch did. They depend on the PTX and the shapes, not on the machine.
type Stats struct {
	Blocks, Warps      uint64
	Instructions       uint64 // of warps
	ThreadInstructions uint64 // of lanes that were active
	GlobalBytes        uint64 // read and written by lanes
	Sectors            uint64 // of 32 bytes, that a warp's access touches
	BankConflicts      uint64 // passes over shared memory beyond the first, of an access by a warp
	MMA                uint64 // mma.sync of a warp
	Barriers           uint64 // of blocks
}

// Add adds b to s.
func (s *Stats) Add(b Stats) {
	s.Blocks += b.Blocks
	s.Warps += b.Warps
	s.Instructions += b.Instructions
	s.ThreadInstructions += b.ThreadInstructions
	s.GlobalBytes += b.GlobalBytes
	s.Sectors += b.Sectors
	s.BankConflicts += b.BankConflicts
	s.MMA += b.MMA
	s.Barriers += b.Barriers
}

// Less returns s without what b counted before.
func (s Stats) Less(b Stats) Stats {
	return Stats{s.Blocks - b.Blocks, s.Warps - b.Warps, s.Instructions - b.Instructions, s.ThreadInstructions - b.ThreadInstructions, s.GlobalBytes - b.GlobalBytes,
		s.Sectors - b.Sectors, s.BankConflicts - b.BankConflicts, s.MMA - b.MMA, s.Barriers - b.Barriers}
}

// Module is a PTX text that was understood whole.
type Module struct {
	Target  string // sm_80
	Version string // of the PTX ISA
	kernels map[string]*Kernel
	order   []string
}

// Kernels are the names of the entries in the order of the text.
func (m *Module) Kernels() []string { return append([]string(nil), m.order...) }

// Kernel returns an entry by its name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k := m.kernels[name]
	if k == nil {
		return nil, fmt.Errorf("ptxsim: no kernel %q; there are %s", name, strings.Join(m.order, ", "))
	}
	return k, nil
}

// Param is a parameter of a kernel: its size in bytes and where it lies among the bytes of all parameters.
type Param struct {
	Name         string
	Size, Offset int
}

// Kernel is an entry of a module.
type Kernel struct {
	Name       string
	Params     []Param
	MaxThreads int // of a block; 0 where the text says nothing
	Shared     int // bytes of shared memory that the text declares

	paramBytes int
	registers  int // of 32 lanes each, special ones among them
	predicates int
	special    []special
	code       []instr
	granule    int // smallest access to shared memory in bytes
	dynamic    bool
}
