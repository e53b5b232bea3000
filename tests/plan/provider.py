"""The schema of Terraform's AWS provider, and what of a Terraform file is not in it.

Owns: how the schema is read from typings that were generated from it, and the comparison. Must not know: which files
are looked at.
"""

import functools
import json
import re
import tarfile

import hcl2

# Of every resource; the language has them, not the provider.
META_ARGUMENTS = {"count", "for_each", "depends_on", "provider"}
META_BLOCKS = {"lifecycle", "connection", "provisioner"}
# Arguments of the schema that are lists of objects, and that the provider takes as blocks too: its documentation
# calls it "attributes as blocks". The schema itself does not say which ones.
AS_BLOCKS = {("aws_security_group", "ingress"), ("aws_security_group", "egress")}

INTERFACE = re.compile(r"^export interface (\w+)[^{\n]*\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
PROPERTY = re.compile(r"/\*\*(.*?)\*/\s*readonly \w+(\??): (\{.*?\n    \}[^\n]*|[^\n]*);\n", re.DOTALL)
PROPERTY_NAME = re.compile(r"#(\w+) \w+#\1\}")
CLASS = re.compile(r"^export declare class \w+ extends cdktf\.Terraform(Resource|DataSource) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
TYPE_NAME = re.compile(r'static readonly tfResourceType = "(\w+)"')
GETTER = re.compile(r"^    get (\w+)\(", re.MULTILINE)

REFERENCE = re.compile(r"(?<![\w.])(data\.)?(aws_\w+)\.(\w+)(?:\[[^\]]*\])?(?:\.(\w+))?")
VALUE_REFERENCE = re.compile(r"(?<![\w.])(var|local)\.(\w+)")


class Member:
    """An argument, or a nested block, of a resource or of a block."""

    def __init__(self, is_required, type_name, is_block):
        self.is_required = is_required
        self.is_block = is_block
        first = type_name.split(" | ")[0]
        self.is_list = first.endswith("[]")
        self.is_map = first.startswith("{")
        self.nested = first.removesuffix("[]")


class Kind:
    """A resource or data type, as the typings of it say."""

    def __init__(self, text):
        self.interfaces = dict(INTERFACE.findall(text))
        self.config = next(name for name in self.interfaces if name.endswith("Config"))
        self.attributes = set(GETTER.findall(matched(CLASS, text)[2]))

    @functools.cache  # noqa: B019 (there are two, until the end)
    def members(self, interface):
        """Members by name of an interface; None where the type is a value."""
        if interface not in self.interfaces:
            return None
        text = self.interfaces[interface]
        found = {}
        for words, optional, type_name in PROPERTY.findall(text):
            name = matched(PROPERTY_NAME, words)[1]
            found[name] = Member(not optional, type_name, f"* {name} block\n" in words)
        # A line that the pattern does not match has to be noticed: its argument would look misspelt, or not required.
        if len(found) != text.count("    readonly "):
            raise ValueError(f"{interface}: {sorted(found)} are not all of its members")
        return found

    def has_attribute(self, name):
        camel = re.sub(r"_(.)", lambda match: match[1].upper(), name)
        return camel in self.attributes or f"{camel}Attribute" in self.attributes


def matched(pattern, text):
    """What a pattern finds in a text that must have it."""
    found = pattern.search(text)
    if not found:
        raise ValueError(f"there is no {pattern.pattern} in: {text[:200]}")
    return found


def content(files, file):
    """The bytes of a file in an archive."""
    opened = files.extractfile(file)
    if not opened:
        raise ValueError(f"{file.name} is no file")
    return opened.read()


class Schema:
    """All types of one version of the provider."""

    def __init__(self, archive):
        self.texts = {}
        with tarfile.open(archive) as files:
            for file in files:
                if file.name == "package/package.json":
                    self.version = json.loads(content(files, file))["cdktf"]["provider"]["version"]
                elif re.fullmatch(r"package/lib/[\w-]+/index\.d\.ts", file.name):
                    text = content(files, file).decode()
                    found = CLASS.search(text)
                    if found:
                        self.texts[(found[1] == "DataSource", matched(TYPE_NAME, found[2])[1])] = text

    @functools.cache  # noqa: B019 (there are two, until the end)
    def kind(self, is_data, name):
        text = self.texts.get((is_data, name))
        return Kind(text) if text else None


def unquoted(text):
    return text.strip('"')


def labelled(blocks, count):
    """Labels and body of each block."""
    for block in blocks:
        labels, body = [], block
        for _ in range(count):
            label, body = next((key, value) for key, value in body.items() if not key.startswith("__"))
            labels.append(unquoted(label))
        yield *labels, body


class Body:
    """What stands between braces: arguments, and blocks by name. A dynamic block is its content, any number of times."""

    def __init__(self, tree):
        self.arguments = {}
        self.blocks: dict = {}
        self.dynamic = set()
        for key, value in tree.items():
            name = unquoted(key)
            if name.startswith("__"):
                continue
            if name == "dynamic":
                for label, body in labelled(value, 1):
                    self.blocks.setdefault(label, []).extend(body["content"])
                    self.dynamic.add(label)
            elif isinstance(value, list) and any(isinstance(each, dict) and "__is_block__" in each for each in value):
                self.blocks.setdefault(name, []).extend(value)
            else:
                self.arguments[name] = value


def shape_mistake(member, value):
    """What a value that is written out is not; of an expression nothing is known."""
    if isinstance(value, str) and value.startswith("${"):
        return None
    wanted = "list" if member.is_list else "map" if member.is_map else "single value"
    written = "list" if isinstance(value, list) else "map" if isinstance(value, dict) else "single value"
    return None if wanted == written else f"is a {written}, and has to be a {wanted}"


def body_mistakes(where, type_name, kind, interface, tree, is_resource=True):
    body = Body(tree)
    members = kind.members(interface)
    meta_arguments, meta_blocks = (META_ARGUMENTS, META_BLOCKS) if is_resource else (set(), set())
    for name, value in body.arguments.items():
        if name in meta_arguments:
            continue
        member = members.get(name)
        if member is None:
            yield f"{where}: no argument {name}"
        elif member.is_block:
            yield f"{where}: {name} is a block, not an argument"
        elif mistake := shape_mistake(member, value):
            yield f"{where}: {name} {mistake}"
    for name, blocks in body.blocks.items():
        if name in meta_blocks:
            continue
        member = members.get(name)
        if member is None:
            yield f"{where}: no block {name}"
            continue
        if not member.is_block and (type_name, name) not in AS_BLOCKS:
            yield f"{where}: {name} is an argument, not a block"
            continue
        if not member.is_list and len(blocks) > 1 and name not in body.dynamic:
            yield f"{where}: only one block {name} may be there"
        for block in blocks:
            yield from body_mistakes(f"{where}: {name}", type_name, kind, member.nested, block, is_resource=False)
    for name, member in members.items():
        if member.is_required and name not in body.arguments and name not in body.blocks:
            yield f"{where}: {name} is required"


def reference_mistakes(text, tree, schema, declared):
    values = {
        "var": {name for name, _ in labelled(tree.get("variable", []), 1)},
        "local": {unquoted(name) for each in tree.get("locals", []) for name in each},
    }
    for sort, name in sorted(set(VALUE_REFERENCE.findall(text))):
        if name not in values[sort]:
            yield f"{sort}.{name} is not declared"
    for data, type_name, name, attribute in sorted(set(REFERENCE.findall(text))):
        kind = schema.kind(bool(data), type_name)
        if (bool(data), type_name, name) not in declared:
            yield f"{data}{type_name}.{name} is not declared"
        elif kind and attribute and not kind.has_attribute(attribute):
            yield f"{data}{type_name}.{name} has no attribute {attribute}"


def mistakes(text, schema):
    """All that is wrong with a Terraform file."""
    tree = hcl2.loads(text)
    found, declared = [], set()
    for key, prefix in (("resource", ""), ("data", "data.")):
        for type_name, name, body in labelled(tree.get(key, []), 2):
            is_data = key == "data"
            where = f"{prefix}{type_name}.{name}"
            declared.add((is_data, type_name, name))
            kind = schema.kind(is_data, type_name)
            if kind is None:
                found.append(f"{where}: no such {key} type")
            else:
                found.extend(body_mistakes(where, type_name, kind, kind.config, body))
    found.extend(reference_mistakes(text, tree, schema, declared))
    return found
