package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	"plumbline/verify/report"
)

// partialSchema is the version of the form of a partial.
const partialSchema = 2

// maxRecord bounds a line of a partial.
const maxRecord = 1 << 28

// partial is the head of what one shard writes. Its file is one JSON object of a line each for the head, every record and the end, so
// that neither who writes nor who reads it has all records in memory.
type partial struct {
	Schema  int         `json:"plumbline_partial"`
	Tool    report.Tool `json:"tool"`
	Build   string      `json:"build"` // of the program: sha256 of the executable
	Command string      `json:"command"`
	Args    []string    `json:"args"` // of the command, without flags of shards and of presentation
	Shard   int         `json:"shard"`
	Of      int         `json:"of"`
	Inputs  string      `json:"inputs"` // sha256 over names and sizes of all files of the run, and the text of configurations

	path string
	at   map[string][]span // of the records, by their keys
}

// span is bytes of a file.
type span struct {
	from int64
	n    int
}

const (
	recordsKey = `,"records":[`
	sumKey     = `],"sha256":"`
)

// write writes a partial; records calls put for each record.
func (p *partial) write(w io.Writer, records func(put func(record any) error) error) error {
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", head[:len(head)-1], recordsKey); err != nil {
		return err
	}
	h, between := sha256.New(), ""
	err = records(func(record any) error {
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		h.Write(text)
		_, err = fmt.Fprintf(w, "%s%s", between, text)
		between = ",\n"
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s%x\"}\n", sumKey, h.Sum(nil))
	return err
}

// writePartial writes the partial of a shard to a file, a folder or, for "", stdout.
func writePartial(cmd *cobra.Command, args []string, s shard, inputs, file string, records func(put func(record any) error) error) error {
	p := partial{Schema: partialSchema, Tool: report.Tool{Name: "verify", Version: cli.Version}, Command: cmd.Name(), Args: judgingArgs(cmd, args), Shard: s.i, Of: s.n, Inputs: inputs}
	var err error
	if p.Build, err = build(); err != nil {
		return err
	}
	if info, serr := os.Stat(file); serr == nil && info.IsDir() {
		file = filepath.Join(file, fmt.Sprintf("shard-%d-of-%d.json", s.i, s.n))
	}
	if file == "" {
		return p.write(cmd.OutOrStdout(), records)
	}
	return format.WriteFile(file, func(w io.Writer) error { return p.write(w, records) })
}

// readPartial reads what a shard wrote: the head, and where its records lie. It looks at each record.
func readPartial(path string) (*partial, error) {
	f, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	var offset int64
	var line []byte
	next := func() error {
		line = line[:0]
		for {
			part, err := in.ReadSlice('\n')
			if line = append(line, part...); len(line) > maxRecord {
				return format.Malformed(path, format.Offset(offset), "has a line of more than %d bytes", maxRecord)
			}
			if err == nil || err == io.EOF && len(line) > 0 {
				return nil
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return err
			}
		}
	}
	none := func(err error) error { return format.Malformed(path, "", "is no partial of a shard: %v", err) }
	if err := next(); err != nil {
		return nil, none(err)
	}
	var schema struct {
		Schema int `json:"plumbline_partial"`
	}
	p := &partial{path: path, at: map[string][]span{}}
	head, ours := bytes.CutSuffix(bytes.TrimSpace(line), []byte(recordsKey))
	if ours {
		head = append(slices.Clone(head), '}')
	}
	if err := json.Unmarshal(head, &schema); err != nil {
		return nil, none(err)
	}
	if schema.Schema != partialSchema {
		return nil, format.Malformed(path, `key "plumbline_partial"`, "is %d, this program reads %d", schema.Schema, partialSchema)
	}
	if err := strictly(head, p); err != nil {
		return nil, none(err)
	}
	h := sha256.New()
	for {
		offset += int64(len(line))
		if err := next(); err != nil {
			return nil, format.Malformed(path, format.Offset(offset), "ends before its sum: the file is damaged")
		}
		if sum, end := bytes.CutPrefix(line, []byte(sumKey)); end {
			if string(bytes.TrimSpace(sum)) != fmt.Sprintf("%x\"}", h.Sum(nil)) {
				return nil, format.Malformed(path, `key "sha256"`, "is not the sum of its records: the file is damaged")
			}
			if offset+int64(len(line)) != f.Size {
				return nil, format.Malformed(path, "", "has more behind the partial")
			}
			return p, nil
		}
		text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte(","))
		if len(text) == 0 { // there is no record
			continue
		}
		var record struct {
			Key string `json:"key"`
		}
		if err := json.Unmarshal(text, &record); err != nil {
			return nil, format.Malformed(path, format.Offset(offset), "is no record: the file is damaged: %v", err)
		}
		h.Write(text)
		p.at[record.Key] = append(p.at[record.Key], span{offset, len(text)})
	}
}

// strictly reads JSON without names that nobody knows.
func strictly(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// records reads the records of a key again, each by read.
func (p *partial) records(key string, read func(text []byte) error) error {
	at := p.at[key]
	if len(at) == 0 {
		return nil
	}
	f, err := format.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, s := range at {
		text := make([]byte, s.n)
		if _, err = f.ReadAt(text, s.from); err == nil {
			err = read(text)
		}
		if err != nil {
			return format.Malformed(p.path, format.Offset(s.from), "was a record and is none now: %v", err)
		}
	}
	return nil
}
