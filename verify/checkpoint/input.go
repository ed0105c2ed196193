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
	"strings"
	"sync"

	"plumbline/internal/arch"
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

	Model   *arch.Model // stated by the user in place of Base
	Size    Size
	MaxSize int64    // 0: DefaultMaxSize, for adapters of which nothing is known
	Needs   []string // of Needable: what the folder must hold

	// Scanned is what shards have found, all of it, in place of a pass over the elements; nil: there were none.
	Scanned []Scanned

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
func (in *Input) baseModel(u *Unit) (m *arch.Model, from string) {
	switch {
	case in.Base != nil:
		if b := in.Base.model(); b != nil && b.Model != nil {
			return u.replicated(b.Model), in.Base.shown("config.json")
		} else if b != nil {
			if m := b.listed(); m != nil {
				return m, "the tensors of " + in.Base.Tree.Path()
			}
		}
		return nil, ""
	case in.Model != nil:
		return u.replicated(in.Model), "--model " + in.Model.Name
	case u != nil && u.Lora != nil && published(u.Lora.Base):
		if m := arch.Find(u.Lora.Base); m != nil {
			return u.replicated(u.resized(m)), fmt.Sprintf("base_model_name_or_path %q", u.Lora.Base)
		}
	}
	return nil, ""
}

// listed returns a model whose modules are those of the unit's tensors, for an architecture that is not known: every matrix is a
// layer that an adapter can sit on, those of the tokens are tables. nil if there are none.
func (u *Unit) listed() *arch.Model {
	m := &arch.Model{}
	if u.Config != nil {
		m.Name, m.Type = u.Config.File, u.Config.Type
	}
	for _, t := range u.tensors(weightsRole) {
		name, ok := strings.CutSuffix(t.Name, ".weight")
		if !ok || len(t.Array.Shape) != 2 {
			continue
		}
		x := arch.Module{Name: name, Layer: -1, Out: t.Array.Shape[0], In: t.Array.Shape[1]}
		if i, ok := layerOf(name); ok {
			x.Layer = i
		}
		for _, e := range tables {
			if endsWith(name, e) {
				x.Kind, x.In, x.Out = arch.Table, t.Array.Shape[0], t.Array.Shape[1]
				m.Vocab = max(m.Vocab, x.In)
			}
		}
		m.Listed = append(m.Listed, x)
	}
	if m.Listed == nil {
		return nil
	}
	return m
}

// tables are the names of embeddings in the architectures of transformers.
var tables = []string{"embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions", "position_embeddings", "embeddings", "shared", "tok_embeddings"}

// published reports whether a name can be that of a model on huggingface.co: name, or owner/name. Others are paths, whose last
// part says nothing: ./gpt2 need not be GPT-2.
func published(name string) bool {
	return !strings.ContainsAny(name, `\:`) && strings.Count(strings.TrimRight(name, "/"), "/") <= 1 && !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "~")
}

// replicated returns m with the layers that layer_replication makes of it.
func (u *Unit) replicated(m *arch.Model) *arch.Model {
	if u == nil || u.Lora == nil || len(u.Lora.Repeats) == 0 {
		return m
	}
	c := *m
	c.Layers = 0
	for _, r := range u.Lora.Repeats {
		c.Layers += r[1] - r[0]
	}
	if c.Windows = nil; c.Validate() != nil {
		return m
	}
	return &c
}

// resized returns m with the vocabulary that the adapter's own embedding or head has: tokens may have been added to the
// model of that name.
func (u *Unit) resized(m *arch.Model) *arch.Model {
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
