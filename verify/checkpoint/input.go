// Package checkpoint judges a folder of weights before it is deployed or resumed from: whether it is what it says.
//
// A folder may hold an adapter of PEFT, a whole model in one file or in shards, a merged or a quantised model, the state
// of a trainer, or a run with several of them, as transformers, PEFT, TRL, verl, OpenRLHF and plumbline itself save them.
// Headers and configurations are read first; elements are read in one parallel pass, in pieces, so that a folder may be
// larger than memory. Pickles are listed and never loaded.
package checkpoint

import (
	"context"
	"fmt"
	"sync"
)

// UsageError says that what was asked for makes no sense.
type UsageError struct{ Msg string }

func (e *UsageError) Error() string { return e.Msg }

func usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// DefaultMaxSize is the largest adapter that passes where nothing says how large it must be (systems.md A.6).
const DefaultMaxSize = 100_000_000

// Size is a demand on the bytes of the weights: Want ± Tolerance·Want.
type Size struct {
	Want      int64 // 0: no demand
	Tolerance float64
	Text      string // as the user wrote it
}

// Input is what a suite examines. Folder is demanded, the rest may be absent.
type Input struct {
	Folder  *Folder
	Base    *Folder // the model that an adapter was trained on
	Init    *Folder // the adapter before training
	Merged  *Folder // the base with the adapter merged in; with it, Folder holds the adapter
	Against *Folder // an earlier checkpoint of the same run

	Model   *Model // stated by the user in place of Base
	Size    Size
	MaxSize int64    // 0: DefaultMaxSize, for adapters of which nothing is known
	Needs   []string // of Needable: what the folder must hold

	Threads  int // 0: GOMAXPROCS
	Progress func(pass string, done, total int)
	Context  context.Context // nil: never cancelled

	scanOnce, mergeOnce, againstOnce sync.Once
	scanErr, mergeErr, againstErr    error
	merged                           *mergeFacts
	against                          []*unitPair
}

// Needable are the things that Input.Needs may name.
var Needable = []string{"value-head", "tokenizer", "optimizer", "rng", "scheduler"}

func (in *Input) context() context.Context {
	if in.Context == nil {
		return context.Background()
	}
	return in.Context
}

// baseModel returns the architecture that adapters of u belong to and where it is known from; nil if it is not known.
func (in *Input) baseModel(u *Unit) (m *Model, from string) {
	switch {
	case in.Base != nil:
		if b := in.Base.model(); b != nil && b.Model != nil {
			return b.Model, in.Base.shown("config.json")
		}
		return nil, ""
	case in.Model != nil:
		return in.Model, "--model " + in.Model.Name
	case u != nil && u.Lora != nil:
		if m := Known(u.Lora.Base); m != nil {
			return u.resized(m), fmt.Sprintf("base_model_name_or_path %q", u.Lora.Base)
		}
	}
	return nil, ""
}

// resized returns m with the vocabulary that the adapter's own embedding or head has: tokens may have been added to the
// model of that name.
func (u *Unit) resized(m *Model) *Model {
	for _, p := range u.pairs {
		rows := 0
		switch {
		case endsWith(p.module, "lm_head"):
			rows = p.out()
		case p.embed:
			rows = p.in()
		}
		if rows > m.Vocab {
			c := *m
			c.Vocab = rows
			return &c
		}
	}
	return m
}

// model returns the first unit that is a whole model, else the first with a configuration; nil if there is none.
func (f *Folder) model() *Unit {
	if list := f.of(Whole); len(list) > 0 {
		return list[0]
	}
	for _, u := range f.Units {
		if u.Config != nil {
			return u
		}
	}
	return nil
}

// adapter returns the first unit that is an adapter, nil if there is none.
func (f *Folder) adapter() *Unit {
	if list := f.of(Adapter); len(list) > 0 {
		return list[0]
	}
	return nil
}
