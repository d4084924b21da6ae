// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/inferencecache/inference-cache/internal/policy"
)

// Kind and APIVersion of a template file.
const (
	APIVersion = "inferencecache.io/v1alpha1"
	Kind       = "PromptTemplate"
)

// FileError is a fault in a template file.
type FileError struct {
	File         string
	Line, Column int // 1-based; 0 when the fault has no place
	Err          error
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// resource is the form of a file: a PromptTemplate without its status.
type resource struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name        string            `yaml:"name"`
		Namespace   string            `yaml:"namespace"`
		Labels      map[string]string `yaml:"labels"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Body  string `yaml:"body"`
		Slots []struct {
			Name        string `yaml:"name"`
			Type        string `yaml:"type"`
			Required    bool   `yaml:"required"`
			Description string `yaml:"description"`
		} `yaml:"slots"`
	} `yaml:"spec"`
}

// ParseFile reads a template file strictly. file appears in errors, which are
// *FileError. Where the file names itself the names must be those given.
func ParseFile(file, namespace, name string, text []byte) (_ policy.Template, err error) {
	defer func() {
		if recover() != nil { // the YAML library gives up on some texts
			err = &FileError{File: file, Err: errors.New("not the YAML of a template")}
		}
	}()
	document, err := parser.ParseBytes(text, 0)
	if err != nil {
		return policy.Template{}, placed(file, err)
	}
	if len(document.Docs) != 1 || document.Docs[0].Body == nil {
		return policy.Template{}, &FileError{File: file, Err: fmt.Errorf("%d documents: expected one", documents(document))}
	}
	var r resource
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&r); err != nil {
		return policy.Template{}, placed(file, err)
	}
	source := r.source(namespace, name)
	if path, err := r.fault(source); err != nil {
		return policy.Template{}, locate(file, document, path, err)
	}
	return source, nil
}

func documents(file *ast.File) (n int) {
	for _, document := range file.Docs {
		if document.Body != nil {
			n++
		}
	}
	return n
}

func (r *resource) source(namespace, name string) policy.Template {
	source := policy.Template{Namespace: namespace, Name: name, Body: r.Spec.Body}
	for _, slot := range r.Spec.Slots {
		source.Slots = append(source.Slots, policy.Slot{
			Name: slot.Name, Type: policy.SlotType(slot.Type), Required: slot.Required,
		})
	}
	return source
}

// fault returns the first thing that is wrong and the YAML path of it.
func (r *resource) fault(source policy.Template) (path string, err error) {
	for _, field := range []struct{ path, got, want string }{
		{"$.apiVersion", r.APIVersion, APIVersion},
		{"$.kind", r.Kind, Kind},
	} {
		if field.got != field.want {
			return field.path, fmt.Errorf("%.64q: expected %s", field.got, field.want)
		}
	}
	for _, field := range []struct{ path, got, want string }{
		{"$.metadata.namespace", r.Metadata.Namespace, source.Namespace},
		{"$.metadata.name", r.Metadata.Name, source.Name},
	} {
		if field.got != "" && field.got != field.want {
			return field.path, fmt.Errorf("%.64q: expected %q, as the file is called", field.got, field.want)
		}
	}
	switch _, err = Compile(source); {
	case errors.Is(err, ErrBadSlot):
		return "$.spec.slots", err
	default:
		return "$.spec.body", err
	}
}

// placed gives an error of the YAML library its place.
func placed(file string, err error) error {
	fault := &FileError{File: file, Err: err}
	var positioned yaml.Error
	if errors.As(err, &positioned) {
		fault.Err = errors.New(positioned.GetMessage())
		if token := positioned.GetToken(); token != nil {
			fault.Line, fault.Column = token.Position.Line, token.Position.Column
		}
	}
	return fault
}

// locate gives an error the place of the value it is about, or of the first
// token when the value is absent.
func locate(file string, document *ast.File, path string, err error) error {
	fault := &FileError{File: file, Line: 1, Column: 1, Err: fmt.Errorf("%s: %w", path[len("$."):], err)}
	at, pathErr := yaml.PathString(path)
	if pathErr != nil {
		return fault
	}
	if node, nodeErr := at.FilterFile(document); nodeErr == nil {
		position := node.GetToken().Position
		fault.Line, fault.Column = position.Line, position.Column
	}
	return fault
}
