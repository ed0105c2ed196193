// Package dump reads and writes dumps: what a trainer hands to verify, one file for each optimisation batch or
// micro-batch of a rank at a step.
//
// A file is NAME.safetensors or NAME.npz; its metadata is one JSON object, the entry "plumbline" of __metadata__ or the
// file NAME.json beside it. Open reads the metadata of all files; Batch reads the files of one step and pools them.
// Tensors that dump.md does not have are noted and never read, NaN and infinities are data, and everything else that is
// not as declared is a *format.Error that names file, tensor, index and both numbers.
package dump

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sort"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
)

// File is a dump of a run.
type File struct {
	Path                   string
	Size                   int64
	Step, Rank, MicroBatch int
	location               location
}

// Run is the dumps of a training run, none of them open. Its methods are safe for concurrent use.
type Run struct {
	Ignored int // files of folders and globs that are no dumps

	// Keep, if not nil, says which tensors Batch reads; to the others it is as if they were not there. It is never asked
	// for masks and segment_ids.
	Keep func(name string) bool

	files  []File // in order of step, rank and micro-batch
	steps  []int
	opt    npy.Options
	common Meta
	mixed  []string
}

// Open reads the metadata of the dumps that the patterns name: files, folders, whose dumps are taken but not those of
// their folders, and globs. Nothing to read is ErrNothing, or fs.ErrNotExist for a name or glob without a file.
func Open(ctx context.Context, patterns []string) (*Run, error) {
	return OpenWith(ctx, patterns, npy.Options{})
}

// OpenWith is Open with options for .npz files.
func OpenWith(ctx context.Context, patterns []string, opt npy.Options) (*Run, error) {
	found, ignored, err := find(patterns)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNothing
	}
	r := &Run{Ignored: ignored, opt: opt, files: make([]File, 0, len(found))}
	o := &opener{opt: opt}
	defer o.close()
	var first File
	var said origins
	for _, l := range found {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, m, err := o.scan(l)
		if err != nil {
			return nil, err
		}
		if len(r.files) == 0 || f.compare(&first) < 0 {
			first, r.common = f, m.Meta
		}
		if err := said.add(&m.Meta, f.Path); err != nil {
			return nil, err
		}
		r.files = append(r.files, f)
	}
	r.mixed = said.differ
	slices.SortStableFunc(r.files, func(a, b File) int { return a.compare(&b) })
	for i := range r.files {
		f := &r.files[i]
		if i > 0 && f.compare(&r.files[i-1]) == 0 {
			return nil, format.Malformed(f.Path, "", "is of step %d, rank %d, micro-batch %d like %s: want one file for each (metadata keys step, rank, micro_batch)",
				f.Step, f.Rank, f.MicroBatch, r.files[i-1].Path)
		}
		if i == 0 || f.Step != r.files[i-1].Step {
			r.steps = append(r.steps, f.Step)
		}
	}
	return r, nil
}

// scan reads the metadata of one file.
func (o *opener) scan(l location) (File, *metadata, error) {
	c, err := o.openContainer(l)
	if err != nil {
		return File{}, nil, err
	}
	defer c.close()
	m, err := c.metadata(o)
	if err != nil {
		return File{}, nil, err
	}
	return File{l.path(), c.size, m.Step, m.Rank, m.MicroBatch, l}, m, nil
}

// compare orders files by step, rank and micro-batch.
func (f *File) compare(g *File) int {
	return cmp.Or(cmp.Compare(f.Step, g.Step), cmp.Compare(f.Rank, g.Rank), cmp.Compare(f.MicroBatch, g.MicroBatch))
}

// SHA256 returns the digest of the file.
func (f *File) SHA256(ctx context.Context) (string, error) {
	o := &opener{}
	defer o.close()
	in, err := o.open(f.location)
	if err != nil {
		return "", err
	}
	defer in.Close()
	sum, err := format.Digest(ctx, in)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path, err)
	}
	return sum, nil
}

// Steps returns the steps of the run in increasing order.
func (r *Run) Steps() []int { return slices.Clone(r.steps) }

// Common returns the metadata of the first file by step, rank and micro-batch.
func (r *Run) Common() Meta { return r.common }

// Mixed says in words where the files contradict each other on what they are of: framework, version, algorithm, profile. Files of
// two runs are refused.
func (r *Run) Mixed() []string { return slices.Clone(r.mixed) }

// Files returns all files in order of step, rank and micro-batch.
func (r *Run) Files() []File { return slices.Clone(r.files) }

// Paths returns the names of all files in the same order.
func (r *Run) Paths() []string {
	paths := make([]string, len(r.files))
	for i := range r.files {
		paths[i] = r.files[i].Path
	}
	return paths
}

// Of returns the files of a step in order of rank and micro-batch.
func (r *Run) Of(step int) []File {
	lo := sort.Search(len(r.files), func(i int) bool { return r.files[i].Step >= step })
	hi := sort.Search(len(r.files), func(i int) bool { return r.files[i].Step > step })
	return slices.Clone(r.files[lo:hi])
}

// Range returns the part of the run with the steps from a to b, both included; it may be empty. Common stays that of
// the whole run.
func (r *Run) Range(a, b int) *Run {
	part := *r
	in := func(step int) bool { return a <= step && step <= b }
	part.files = slices.DeleteFunc(slices.Clone(r.files), func(f File) bool { return !in(f.Step) })
	part.steps = slices.DeleteFunc(slices.Clone(r.steps), func(step int) bool { return !in(step) })
	return &part
}

// Batches yields the batch of every step in increasing order, or the error of reading it. It ends with the first error
// of ctx; after any other the caller may go on to the next step.
func (r *Run) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		for _, step := range r.steps {
			b, err := r.Batch(ctx, step)
			if !yield(b, err) || ctx.Err() != nil {
				return
			}
		}
	}
}

// Light returns the batch of a step with its masks and metadata, and without the other tensors.
func (r *Run) Light(step int) (*Batch, error) {
	light := *r
	light.Keep = func(string) bool { return false }
	return light.Batch(context.Background(), step)
}
