package runlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format"
	"plumbline/internal/format/runlog"
)

// Record is a page of one log: rows as they were read, in the order of its lines.
type Record struct {
	Key  string `json:"key"`  // place of the log among those of the run, from 0
	Page []byte `json:"page"` // of [page], as encoding/gob writes it
}

// page is what a [Record] holds.
type page struct {
	Names []string // that the rows have for the first time
	Rows  []paged
	End   *ending // of the last page
}

type paged struct {
	Row   runlog.Row
	Bits  []uint64 // of the values of its fields: encoding/gob takes the sign of −0
	Names int      // that were known
}

// ending is what a reader knows at the end of a log.
type ending struct {
	Size, Lines, Bytes int64
	Count              []int64
	Cut                bool
	Bad                *format.Error
}

// A page has at most so many rows, and ends with the row that brings its texts to so many bytes.
const (
	pageRows = 1024
	pageText = 1 << 20
)

// of says which shard of n reads each log: consecutive logs, of about equally many bytes.
func of(sizes []int64, n int) []int {
	total, before := int64(0), int64(0)
	for _, s := range sizes {
		total += s + 1
	}
	shards := make([]int, len(sizes))
	for k, s := range sizes {
		shards[k] = int(float64(n) * (float64(before) + float64(s+1)/2) / float64(total))
		before += s + 1
	}
	return shards
}

// Shard reads the logs of shard i of n, 0 ≤ i < n, each of them whole, and hands over what [Merge] needs of their rows. The error of a
// malformed log, whose rows up to there are handed over, is bad: Merge meets the same.
func Shard(ctx context.Context, paths []string, i, n int, put func(Record) error) (bad *format.Error, err error) {
	files, _, err := Files(paths)
	if err != nil {
		return nil, err
	}
	sizes := make([]int64, len(files))
	for k, path := range files {
		sizes[k] = sizeOf([]string{path})
	}
	for k, shard := range of(sizes, n) {
		if shard != i {
			continue
		}
		l := &log{path: files[k], reader: newReader()}
		w := &pager{key: strconv.Itoa(k), put: put}
		err := fromFile(nil)(ctx, k, l, func(row *runlog.Row) error { return w.add(row, l.reader.Names) })
		var malformed *format.Error
		if err != nil && !errors.As(err, &malformed) {
			return bad, err
		}
		bad = cmp.Or(bad, malformed)
		r := l.reader
		if err := w.end(&ending{l.size, r.Lines, r.Bytes, slices.Clone(r.Count[:]), r.Cut, malformed}, r.Names); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// pager writes pages.
type pager struct {
	key   string
	put   func(Record) error
	page  page
	known int // names on pages
	text  int
}

func (w *pager) add(row *runlog.Row, names []string) error {
	kept := *row
	kept.Fields, kept.Text = slices.Clone(row.Fields), bytes.Clone(row.Text)
	w.page.Names = append(w.page.Names, names[w.known:]...)
	w.known = len(names)
	bits := make([]uint64, len(kept.Fields))
	for i, f := range kept.Fields {
		bits[i] = math.Float64bits(f.Value)
	}
	w.page.Rows = append(w.page.Rows, paged{kept, bits, w.known})
	if w.text += len(kept.Text); len(w.page.Rows) < pageRows && w.text < pageText {
		return nil
	}
	return w.flush()
}

func (w *pager) end(e *ending, names []string) error {
	w.page.Names, w.page.End = append(w.page.Names, names[w.known:]...), e
	return w.flush()
}

func (w *pager) flush() error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(w.page); err != nil {
		return err
	}
	w.page, w.text = page{}, 0
	return w.put(Record{w.key, b.Bytes()})
}

// Notes are the records of all shards by their keys, each key's in the order in which they were handed over.
type Notes interface {
	Each(key string, read func(Record) error) error
}

// Merge gives the report of [Judge] from the records of all shards; the logs are not read again.
func Merge(ctx context.Context, paths []string, o Options, notes Notes) (*Report, error) {
	return judge(ctx, paths, o, func(ctx context.Context, k int, l *log, each func(*runlog.Row) error) error {
		var last *ending
		err := notes.Each(strconv.Itoa(k), func(r Record) error {
			var p page
			if err := gob.NewDecoder(bytes.NewReader(r.Page)).Decode(&p); err != nil {
				return err
			}
			if last != nil {
				return errors.New("a page behind the last one")
			}
			known := len(l.reader.Names)
			all := append(l.reader.Names, p.Names...)
			for i := range p.Rows {
				row := &p.Rows[i]
				if row.Names < known || row.Names > len(all) || len(row.Bits) != len(row.Row.Fields) || row.Row.Form < 0 || int(row.Row.Form) >= len(l.reader.Count) || slices.ContainsFunc(row.Row.Fields, func(f runlog.Field) bool { return f.Name < 0 || f.Name >= row.Names }) {
					return fmt.Errorf("line %d is none that a reader gives", row.Row.Line)
				}
				for i, bits := range row.Bits {
					row.Row.Fields[i].Value = math.Float64frombits(bits)
				}
				known = row.Names
				l.reader.Names = all[:known]
				if err := each(&row.Row); err != nil {
					return err
				}
			}
			l.reader.Names, last = all, p.End
			return nil
		})
		if err != nil {
			return fatal{err}
		}
		if last == nil || len(last.Count) != len(l.reader.Count) {
			return fatal{fmt.Errorf("no shard has read %s to its end", l.path)}
		}
		l.size, l.reader.Lines, l.reader.Bytes, l.reader.Cut = last.Size, last.Lines, last.Bytes, last.Cut
		copy(l.reader.Count[:], last.Count)
		if last.Bad != nil {
			return last.Bad
		}
		return nil
	})
}

// fatal is an error after which there is no report.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }
