"""XML parser without entity expansion and external references."""

from typing import NoReturn
from xml.parsers import expat

from gpufleet.model.errors import WireError


def make_xml_parser(field: str, reason: str) -> expat.XMLParserType:
    """Return a parser that raises WireError(field, reason) if a document declares or uses an entity."""

    def refuse(*_: object) -> NoReturn:
        raise WireError(field, reason)

    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.SkippedEntityHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    return parser
