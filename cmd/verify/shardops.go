package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"plumbline/accel"
	"plumbline/internal/format"
	"plumbline/verify/check"
)

// opUnit is what one op gave under one variant.
type opUnit struct {
	Result        check.Result
	Rows, Kernels [][]string // of the tables
	Ran           bool
}

// unitRecord is the record of a unit in a partial.
type unitRecord struct {
	Key  string `json:"key"`  // op and variant
	Unit []byte `json:"unit"` // of [opUnit], as encoding/gob writes it
}

// opShards says which units are judged here: all, those of a shard, or none, because shards have judged them.
type opShards struct {
	part  *shard // nil: no shard
	put   func(any) error
	seen  int // units before
	notes []*partial
}

// unit judges an op under a variant, or reads what a shard found. There is none if another shard judges it.
func (s *opShards) unit(op, variant string, judge func() (opUnit, error)) (u opUnit, here bool, err error) {
	key := op + " " + variant
	if s.notes != nil {
		u, err = s.read(key)
		return u, true, err
	}
	mine := s.part == nil || s.seen%s.part.n == s.part.i // neighbours take about the same time: they are dealt out
	s.seen++
	if !mine {
		return u, false, nil
	}
	if u, err = judge(); err != nil || s.part == nil {
		return u, true, err
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(u); err != nil {
		return u, true, err
	}
	return u, true, s.put(unitRecord{key, b.Bytes()})
}

func (s *opShards) read(key string) (u opUnit, err error) {
	found := 0
	for _, p := range s.notes {
		err := p.records(key, func(text []byte) error {
			var r unitRecord
			if err := strictly(text, &r); err != nil {
				return err
			}
			found++
			return gob.NewDecoder(bytes.NewReader(r.Unit)).Decode(&u)
		})
		if err != nil {
			return u, err
		}
	}
	if found != 1 {
		return u, format.Malformed(s.notes[0].path, "", "and the other partials have %d results of %s, want 1", found, key)
	}
	return u, nil
}

// opInputs names what the verdicts of verify ops depend on beside its arguments: the variants that this machine lacks, and why, and
// those that must run.
func opInputs(required []string) string {
	h := sha256.New()
	for _, k := range kernels() {
		eachVariant(k.Name, func(v accel.Variant) { fmt.Fprintf(h, "%q %q %q %t\n", k.Name, v.Name, v.Missing, v.Broken) })
	}
	required = slices.Clone(required)
	slices.Sort(required)
	fmt.Fprintf(h, "%q\n", slices.Compact(required))
	return hex.EncodeToString(h.Sum(nil))
}

// takeOpShards has a merge read what shards have found.
func (j *opsJob) takeOpShards(cmd *cobra.Command) error {
	list, merged := cmd.Context().Value(merging{}).([]*partial)
	if !merged {
		return nil
	}
	if opInputs(j.required) != list[0].Inputs {
		return format.Malformed(list[0].path, `key "inputs"`, "is of a machine with other features than this one, or of another VERIFY_REQUIRE: merge where the shards ran")
	}
	j.shards.notes = list
	return nil
}
