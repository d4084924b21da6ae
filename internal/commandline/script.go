// SPDX-License-Identifier: Apache-2.0

package commandline

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// The parser recurses as deep as a script nests, without a bound of its own:
// what is larger or has more brackets is not read.
const (
	maxScript   = 16 << 10
	maxBrackets = 1000
)

// scriptOf is the script among the words of a shell, "" for none.
func scriptOf(words []string) string {
	i := slices.IndexFunc(words, isShell)
	if i < 0 {
		return ""
	}
	script := false
	for i++; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "--":
		case strings.HasPrefix(word, "--"):
		case strings.HasPrefix(word, "-"), strings.HasPrefix(word, "+"):
			script = script || strings.Contains(word, "c")
			if strings.HasSuffix(word, "o") {
				i++ // the name of an option
			}
		case script:
			return word
		default:
			return ""
		}
	}
	return ""
}

// commandsOf are the words of a script's commands, in order, as far as that
// needs no running: variables are those that are known or set in the script,
// and what else a shell would compute stays as it is written.
func commandsOf(text string, known *variables) [][]string {
	if len(text) > maxScript || strings.Count(text, "(")+strings.Count(text, "[") > maxBrackets {
		return nil
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil {
		return nil
	}
	s := script{text: text, known: known}
	syntax.Walk(file, s.visit)
	return s.commands
}

// script is read in the order in which it is written.
type script struct {
	text     string
	known    *variables
	commands [][]string
}

func (s *script) visit(node syntax.Node) bool {
	switch node := node.(type) {
	case *syntax.CallExpr:
		s.call(node)
	case *syntax.DeclClause:
		s.assign(node.Args)
	case *syntax.WordIter:
		delete(s.known.values, node.Name.Value)
	}
	return true
}

func (s *script) call(call *syntax.CallExpr) {
	if len(call.Args) == 0 {
		s.assign(call.Assigns) // else they hold for the command alone
		return
	}
	var command []string
	for _, word := range call.Args {
		text, _ := s.parts(word.Parts, false)
		command = append(command, text)
	}
	s.commands = append(s.commands, command)
}

func (s *script) assign(assigns []*syntax.Assign) {
	for _, a := range assigns {
		if a.Naked || a.Name == nil {
			continue
		}
		value, known := "", a.Array == nil && a.Index == nil
		if known && a.Value != nil {
			value, known = s.parts(a.Value.Parts, false)
		}
		if a.Append && known {
			var before string
			before, known = s.known.get(a.Name.Value)
			value = before + value
		}
		s.set(a.Name.Value, value, known)
	}
}

func (s *script) set(name, value string, known bool) {
	if known {
		s.known.values[name] = value
	} else {
		delete(s.known.values, name)
	}
}

// parts is a word without its quotes, and whether all of it is known.
func (s *script) parts(parts []syntax.WordPart, quoted bool) (string, bool) {
	var out strings.Builder
	all := true
	for _, part := range parts {
		text, known := s.part(part, quoted)
		out.WriteString(text)
		all = all && known
	}
	return out.String(), all
}

func (s *script) part(part syntax.WordPart, quoted bool) (string, bool) {
	switch part := part.(type) {
	case *syntax.Lit:
		return unescape(part.Value, quoted), true
	case *syntax.SglQuoted:
		if !part.Dollar {
			return part.Value, true
		}
	case *syntax.DblQuoted:
		return s.parts(part.Parts, true)
	case *syntax.ParamExp:
		if text, known := s.variable(part, quoted); known {
			return text, true
		}
	}
	return s.text[part.Pos().Offset():part.End().Offset()], false
}

// variable is the value of $NAME, ${NAME} and ${NAME:-otherwise}.
func (s *script) variable(p *syntax.ParamExp, quoted bool) (string, bool) {
	if p.Excl || p.Length || p.Index != nil || p.Slice != nil || p.Repl != nil || p.Names != 0 {
		return "", false
	}
	name := p.Param.Value
	value, known := s.known.get(name)
	if p.Exp == nil {
		return value, known
	}
	switch p.Exp.Op {
	case syntax.DefaultUnset, syntax.AssignUnset:
	case syntax.DefaultUnsetOrNull, syntax.AssignUnsetOrNull:
		known = known && value != ""
	default:
		return "", false
	}
	if known {
		return value, true
	}
	value, known = "", true
	if p.Exp.Word != nil {
		value, known = s.parts(p.Exp.Word.Parts, quoted)
	}
	if p.Exp.Op == syntax.AssignUnset || p.Exp.Op == syntax.AssignUnsetOrNull {
		s.set(name, value, known)
	}
	return value, known
}

// unescape takes the backslashes out of a word. In double quotes they are that
// only before some characters.
func unescape(text string, quoted bool) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, `\`)
		out.WriteString(before)
		if !found || after == "" {
			return out.String()
		}
		switch {
		case after[0] == '\n':
		case quoted && !strings.Contains("$`\"\\", after[:1]):
			out.WriteString(`\` + after[:1])
		default:
			out.WriteByte(after[0])
		}
		text = after[1:]
	}
}
