"""An XML parser that expands nothing and fetches nothing."""

from typing import NoReturn
from xml.parsers import expat

from gpufleet.model.errors import WireError


def closed_parser(field: str, words: str) -> expat.XMLParserType:
    """Return a parser that raises WireError of these words, blaming `field`, where a document declares an entity."""

    def refuse(*_: object) -> NoReturn:
        raise WireError(field, words)

    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.SkippedEntityHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    return parser
