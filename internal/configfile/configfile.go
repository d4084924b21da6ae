// SPDX-License-Identifier: Apache-2.0

// Package configfile reads configuration files in YAML. Whatever is wrong with
// one is an *Error that says where and what was expected.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is a fault in a configuration file.
type Error struct {
	File         string
	Line, Column int // 1-based; 0 when the fault has no place
	Problem      string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Problem)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// Fault is a wrong value and its YAML path, which begins with "$.".
type Fault struct{ Path, Problem string }

// NewFault returns a fault at a YAML path.
func NewFault(path, problem string) *Fault { return &Fault{Path: path, Problem: problem} }

func (f *Fault) Error() string { return f.Path[len("$."):] + ": " + f.Problem }

// Load reads a file into config, a pointer to a struct, and checks it. Unknown
// keys are faults, and so is a file without any.
func Load(path string, config any, check func() *Fault) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	return Parse(path, data, config, check)
}

// Parse is Load on bytes; name appears in errors.
func Parse(name string, data []byte, config any, check func() *Fault) (err error) {
	defer func() {
		if recover() != nil { // the YAML library gives up on some texts
			err = &Error{File: name, Problem: "not the YAML of a configuration"}
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return syntaxError(name, err)
	}
	if len(file.Docs) > 1 {
		position := file.Docs[1].GetToken().Position
		return &Error{name, position.Line, position.Column, "a second document: expected one"}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	err = decoder.Decode(config)
	if errors.Is(err, io.EOF) {
		// A file that somebody is about to write must not take all away.
		return &Error{File: name, Problem: "the file is empty: expected at least a version"}
	}
	if err != nil {
		return syntaxError(name, err)
	}
	if fault := check(); fault != nil {
		return locate(name, file, fault)
	}
	return nil
}

func syntaxError(name string, err error) error {
	var placed *Error
	if errors.As(err, &placed) {
		return &Error{name, placed.Line, placed.Column, placed.Problem}
	}
	fault := &Error{File: name, Problem: err.Error()}
	var positioned yaml.Error
	if errors.As(err, &positioned) {
		fault.Problem = problemOf(positioned)
		if token := positioned.GetToken(); token != nil {
			fault.Line, fault.Column = token.Position.Line, token.Position.Column
		}
	}
	return fault
}

// problemOf says what is wrong in words of the file, not of the decoder.
func problemOf(err yaml.Error) string {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) || wrong.Token == nil || wrong.DstType == nil {
		return err.GetMessage()
	}
	expected := ""
	switch wrong.DstType.Kind() {
	case reflect.Bool:
		expected = "true or false"
	case reflect.Int, reflect.Int64:
		expected = "a whole number"
	case reflect.String:
		expected = "a text"
	default:
		return err.GetMessage()
	}
	return fmt.Sprintf("%q: expected %s", wrong.Token.Value, expected)
}

func locate(name string, file *ast.File, f *Fault) error {
	located := &Error{File: name, Problem: f.Error()}
	path, err := yaml.PathString(f.Path)
	if err != nil {
		return located
	}
	node, err := path.FilterFile(file)
	if err != nil {
		return located
	}
	position := node.GetToken().Position
	located.Line, located.Column = position.Line, position.Column
	return located
}
