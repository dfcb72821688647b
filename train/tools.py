"""Tools of any name: declarations, requests that need one, several or none of them, and answers from their results.

A tool is either of a subject that the world knows (weather, timers, flights; SUBJECTS) or made of any words (made_up). Names and parameters are
written in several styles and must be copied from the declaration; what the user says decides which parameters a call has. Answers follow from
results by fixed rules (`told`)."""
import json

from chat import Sample, Turn
from world import *

VERBS = {
    "read": "get fetch find lookup show read check query retrieve load view describe".split(),
    "make": "create add make insert register open build".split(),
    "drop": "delete remove cancel drop clear archive".split(),
    "set": "set update change edit adjust configure".split(),
    "run": "start run launch trigger execute begin activate".split(),
    "stop": "stop halt pause end disable close".split(),
    "send": "send post share forward submit publish".split(),
    "search": "search find list browse filter scan".split(),
}
NOUNS = """account address agenda alarm album answer appointment archive article asset backup badge balance banner basket batch bill blog board
bonus booking bookmark branch budget bug build bundle cache calendar call camera campaign candidate card cart case catalog category certificate
channel chart chat checklist claim class client cluster comment commit company component contact container contract coupon course customer
dashboard dataset delivery deposit device diagram discount document domain donation draft driver engine entry episode error estimate exam
expense experiment export feature feed fee festival file film filter fine flight folder forecast form forum gallery game gift goal grade graph
group guest guide habit heater history holiday hook hotel house image import incident index inventory invite invoice issue job journal label
lab lesson level license limit link list loan log machine mailbox manual map market match meal medicine meeting member memo menu message meter
milestone model module monitor mood movie network note notice object offer office operator option order outlet owner package page paper parcel
parking partner passport patch patient payment permit pet phase photo pipeline plan plant platform player playlist podcast policy poll port
portfolio post price printer prize process product profile program project promotion proposal protocol quest queue quiz quota quote race rank
rate rating receipt recipe record refund region release reminder rental repair report request reservation review reward ride role roster route
rule salary sample scan schedule schema score screen script season seat section sensor series server service session shift shipment signal site
skill slot snapshot song source speaker sprint staff status step storage store story stream student subscription supplier survey switch table
tag target task tax team template tenant test theme thread ticket tide timeline token tour track trade train transfer trip update upload user
valve vehicle vendor version video visa visit vote voucher wallet warehouse warning webhook weight widget window worker zone""".split()
OPTIONS = """active archived cached compact detailed draft fast hidden locked muted nested pinned private public quiet recursive safe secure shared sorted
strict urgent verbose visible""".split()
COUNTS = "age amount attempts batch_size count day depth duration floor height hours length level limit max_price minutes number offset page people port quantity radius rating rooms rows score seats seed size speed timeout top_k volume weight width year".split()
TEXTS = "author brand category client color country customer department editor group label language manager model owner project region role room source status supplier team theme topic vendor zone".split()
MAIN = "name id title key target item query subject label user city location place path file code reference topic text value input address product person".split()
ENUMS = [("priority", ["low", "medium", "high"]), ("size", ["small", "medium", "large"]), ("format", ["json", "csv", "xml"]), ("order", ["asc", "desc"]),
         ("mode", ["fast", "normal", "slow"]), ("status", ["open", "closed", "pending"]), ("level", ["debug", "info", "warning", "error"]),
         ("unit", ["metric", "imperial"]), ("period", ["day", "week", "month", "year"]), ("quality", ["draft", "standard", "best"]),
         ("direction", ["left", "right", "up", "down"]), ("color", ["red", "green", "blue", "yellow"]), ("shift", ["morning", "evening", "night"]),
         ("kind", ["car", "bus", "train", "bike"]), ("currency", ["USD", "EUR", "GBP", "JPY"]), ("class", ["economy", "business", "first"])]
GROUPS = "options filter settings config details params data info query meta".split()
ENDINGS = "txt md py json csv log html png c toml".split()
DONE = ["ok", "done", "success", "sent", "saved", "created", "started", "updated", "deleted", "accepted", "OK", "Done"]
FAILURES = ["not found", "timeout", "access denied", "no connection", "invalid id", "service unavailable", "unknown user", "too many requests"]
SYSTEMS = ["You are a helpful assistant.", "Be brief.", "You are nano.", "Use the tools when they help.", "You are a helpful assistant with access to tools.",
           "Answer the question. Use tools if needed.", "You are a careful assistant.", "Call a tool when it fits.", "Today is Monday."]
SKY = ["sky", "condition", "conditions", "weather", "summary", "outlook"]
TEMP = ["temp", "temperature", "temp_c", "temperature_c", "degrees", "tempC"]
PLACE_NAMES = ["New York", "San Francisco", "Los Angeles", "Cape Town", "Mexico City", "Buenos Aires", "Hong Kong", "Tel Aviv", "Rio de Janeiro", "New Delhi", "San Diego", "Kuala Lumpur"]
STATES = ["CA", "NY", "TX", "MA", "WA", "FL", "UK", "USA"]
FILLERS = """the a is you are use this tool when with for and or not must should never always file path command output user answer text code line
project message number name string return call before after only all any each list directory content request result value first other same
example important note between under while question task work write read run make change search current different""".split()


def styled(words, style):
    """The words as one name"""
    words = [w for x in words for w in x.split("_")]
    if style == "snake": return "_".join(words)
    if style == "kebab": return "-".join(words)
    if style == "camel": return words[0] + "".join(w.capitalize() for w in words[1:])
    if style == "pascal": return "".join(w.capitalize() for w in words)
    return "".join(words)


def spaced(name):
    return name.replace("_", " ")


class Kit:
    """What is drawn for one sample"""

    def __init__(self, m, gen):
        self.m, self.r, self.gen = m, m.rng, gen
        self.taken = set()          # the words that tools of this sample are about
        self.names = set()
        self.hard = not m.test and self.r.random() < 0.6    # training has more of what is hard than people ask for

    # --- values -------------------------------------------------------------------------------------
    def word(self): return self.gen.invented(self.r)

    def place(self):
        x = self.r.random()
        if x < 0.08: return self.r.choice(PLACE_NAMES)
        if x < 0.15: return "%s, %s" % (self.gen.city(self.r), self.r.choice(list(COUNTRIES) + STATES))
        return self.gen.city(self.r)

    def person(self): return self.gen.first(self.r)
    def full(self): return "%s %s" % (self.gen.first(self.r), self.gen.last(self.r))
    def thing(self): return self.gen.thing(self.r)
    def code(self): return "%s-%d" % ("".join(self.r.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(self.r.randrange(1, 4))), self.r.randrange(10, 10000))
    def number(self): return self.r.choice([self.r.randrange(1, 10), self.r.randrange(1, 100), self.r.randrange(1, 1000), self.r.randrange(1, 10000)])
    def real(self): return round(self.r.choice([self.r.uniform(0.1, 10), self.r.uniform(1, 100)]), self.r.choice([1, 2])) if self.r.random() < 0.8 else self.number()
    def file(self): return "%s%s.%s" % (self.r.choice(["", "", "src/", "docs/", "/tmp/", "data/"]), self.r.choice([self.word(), self.r.choice(NOUNS), "main", "notes"]), self.r.choice(ENDINGS))
    def link(self): return "https://%s.%s%s" % (self.word(), self.r.choice(["com", "org", "net"]), self.r.choice(["", "/" + self.r.choice(NOUNS), "/%s/%d" % (self.word(), self.number())]))
    def mail(self): return "%s@%s.%s" % (self.person().lower(), self.word(), self.r.choice(["com", "org"]))
    def date(self): return "20%02d-%02d-%02d" % (self.r.randrange(20, 35), self.r.randrange(1, 13), self.r.randrange(1, 29))
    def clock(self): return "%02d:%02d" % (self.r.randrange(24), self.r.randrange(60))

    def name_value(self):
        """A value that can stand for anything"""
        k = self.r.randrange(10)
        return [self.place, self.person, self.full, self.thing, self.code, self.word, lambda: self.word().capitalize(), lambda: self.r.choice(ANIMALS),
                lambda: "%s %s" % (self.r.choice(ADJ), self.r.choice(THINGS)), self.file][k]()

    def style(self):
        return self.r.choices(["snake", "camel", "pascal", "kebab"], [60, 24, 8, 8])[0]

    def tool_name(self, words):
        """A name of this split, in any style; names of the first tools keep the answers that they always had"""
        def make():
            verb, noun = words()
            style = self.style()
            form = [verb] + noun if verb else noun
            x = self.r.random()
            if x < (0.14 if self.hard else 0.06): return "%s__%s" % (self.word() if self.r.random() < 0.5 else "mcp", styled(form, "snake")), style
            if x < (0.20 if self.hard else 0.10) and verb: return styled(noun + [verb], style), style
            return styled(form, style), style
        got = []

        def draw():
            got[:] = make()
            while got[0] in self.names or got[0] in TOOLS and got[0] not in ("get_weather", "get_time"): got[:] = make()
            return got[0]
        self.m.draw("tool name", draw, lambda n: n in TOOLS)
        self.names.add(got[0])
        return got[0], got[1] if got[1] in ("snake", "camel") else self.r.choice(["snake", "camel"])


class Param:
    """A parameter: `name` in the schema, `words` in what people say, a value or none, and how the value is said"""

    def __init__(self, name, words, kind, value=None, about=None, required=True, enum=None, said=None, inner=None):
        self.name, self.words, self.kind, self.value, self.about, self.required, self.enum, self.inner = name, words, kind, value, about, required, enum, inner
        self.said = said or text_of(value)

    def schema(self):
        """(name, description, type, required, enum or items or properties)"""
        if self.inner is not None: return (self.name, self.about, "object", self.required, [p.schema() for p in self.inner])
        return (self.name, self.about, self.kind, self.required, self.enum)


def text_of(v):
    if isinstance(v, bool): return "true" if v else "false"
    if isinstance(v, list): return listed([text_of(x) for x in v])
    return str(v)


def listed(xs):
    return xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + " and " + xs[-1]


class Tool:
    def __init__(self, name, about, params, ask, topic, subject=None):
        self.name, self.about, self.params, self.ask, self.topic, self.subject = name, about, params, ask, topic, subject

    def declared(self):
        return (self.name, self.about, [p.schema() for p in self.params])

    def arguments(self):
        out = {}
        for p in self.params:
            if p.inner is not None:
                inside = {q.name: q.value for q in p.inner if q.value is not None}
                if inside: out[p.name] = inside
            elif p.value is not None: out[p.name] = p.value
        return out


# --- subjects that the world knows -----------------------------------------------------------------------
# topic: verbs, nouns, descriptions, parameters (slot, names, value, descriptions), requests
def slot(names, value, kind="string", about=None, required=True, enum=None):
    return dict(names=names.split(), value=value, kind=kind, about=about or [], required=required, enum=enum)


PLACE = "location city place town locality cityName location_name where destination area"
SUBJECTS = {
    "weather": dict(
        verbs="get fetch check current lookup show read query".split(), nouns=["weather", "weather", "weather", "current weather", "weather report", "weather info", "local weather", "weather by city"],
        about=["Get the current weather", "Current weather of a city", "Get the current weather in a given location", "Get weather for a location", "Returns the weather",
               "Look up the weather", "Tells the current weather of a place", "Get the current temperature for a location"],
        slots={"place": slot(PLACE + " q", Kit.place, about=["City name", "The city", "The city and state, e.g. San Francisco, CA", "Name of the place", "Location to get the weather for", "City, for example Paris"])},
        asks=["What is the weather in {place}?", "What's the weather in {place}?", "How is the weather in {place}?", "Weather in {place}?", "Tell me the weather in {place}.", "What's the weather like in {place}?",
              "What is the weather like in {place} today?", "How's the weather in {place}?", "Is it raining in {place}?", "What is the temperature in {place}?", "How warm is it in {place}?", "weather {place}",
              "What is the current weather in {place}?", "Give me the weather for {place}.", "What's the weather in {place} right now?", "Do I need an umbrella in {place}?", "Is it cold in {place}?",
              "Show me the weather in {place}.", "Check the weather in {place}."],
        same=["What is the weather in {many}?", "What's the weather like in {many}?", "Weather in {many}?", "Tell me the weather in {many}.", "Compare the weather in {many}.", "How is the weather in {many}?"]),
    "time": dict(
        verbs="get fetch current show tell local".split(), nouns=["time", "time", "local time", "clock", "time in city"],
        about=["Local time of a city", "Get the current time", "Returns the local time of a place", "What time it is somewhere", "Current time in a time zone"],
        slots={"place": slot(PLACE + " timezone zone", Kit.place, about=["City name", "The city", "Place to tell the time of"])},
        asks=["What time is it in {place}?", "Tell me the time in {place}.", "Time in {place}?", "What is the time in {place}?", "What's the time in {place}?", "What is the local time in {place}?", "How late is it in {place}?"],
        same=["What time is it in {many}?", "What is the time in {many}?", "Tell me the time in {many}."]),
    "forecast": dict(
        verbs="get fetch show".split(), nouns=["forecast", "weather forecast", "daily forecast"],
        about=["Weather forecast for some days", "Get the forecast of a place", "Forecast for the coming days"],
        slots={"place": slot(PLACE, Kit.place, about=["City name", "The city"]), "days": slot("days n_days num_days dayCount", lambda k: k.r.randrange(2, 15), "integer", ["Number of days", "How many days"])},
        asks=["What is the forecast for {place} for {days} days?", "Give me a {days} day forecast for {place}.", "Show me the forecast of the next {days} days in {place}.", "Forecast for {place}, {days} days."]),
    "timer": dict(
        verbs="set start create begin new".split(), nouns=["timer", "countdown", "kitchen timer"], about=["Start a timer", "Set a timer", "Counts down some minutes"],
        slots={"minutes": slot("minutes duration mins length time_minutes durationMinutes", lambda k: k.r.randrange(1, 240), "integer", ["Length in minutes", "Minutes", "How long"])},
        asks=["Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Count down {minutes} minutes."]),
    "message": dict(
        verbs="send write post".split(), nouns=["message", "text message", "chat message", "sms"], about=["Send a message to a person", "Send a text message", "Writes to somebody"],
        slots={"to": slot("to recipient person receiver name contact", Kit.person, about=["Name of the person", "Who gets it", "Recipient"]),
               "text": slot("text message body content msg", lambda k: k.r.choice(MESSAGES), about=["Message text", "What to say", "Content"])},
        asks=["Send a message to {to}: {text}", "Tell {to}: {text}", "Write to {to}: {text}", "Message {to}: {text}", "Text {to}: {text}", "Send {to} the message: {text}"]),
    "mail": dict(
        verbs="send write compose".split(), nouns=["email", "mail", "e_mail"], about=["Send an email", "Write a mail to an address"],
        slots={"to": slot("to recipient address email to_address", Kit.mail, about=["Mail address", "Recipient"]), "subject": slot("subject title topic headline", lambda k: k.r.choice(TITLES), about=["Subject line", "Subject"]),
               "body": slot("body text content message", lambda k: k.r.choice(MESSAGES), about=["Text of the mail", "Body"])},
        asks=["Send an email to {to} about {subject}: {body}", "Write an email to {to} with the subject {subject} and the text: {body}", "Mail {to}, subject {subject}: {body}"]),
    "exchange": dict(
        verbs="convert exchange calculate".split(), nouns=["currency", "money", "currencies"], about=["Convert an amount of money", "Convert between currencies", "Exchange money"],
        slots={"amount": slot("amount value sum quantity money", lambda k: k.r.choice([k.number(), k.real()]), "number", ["Amount", "Amount of money"]),
               "source": slot("source from from_currency base sourceCurrency base_currency", lambda k: k.r.choice(CODES), about=["Currency code", "Currency to convert from"]),
               "target": slot("target to to_currency quote targetCurrency", lambda k: k.r.choice(CODES), about=["Currency code", "Currency to convert to"])},
        asks=["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?", "Exchange {amount} {source} for {target}.", "What is {amount} {source} in {target}?", "{amount} {source} to {target}"]),
    "rate": dict(
        verbs="get fetch lookup".split(), nouns=["exchange rate", "fx rate", "currency rate"], about=["Exchange rate of two currencies", "Get the rate between two currencies"],
        slots={"source": slot("source from from_currency base", lambda k: k.r.choice(CODES), about=["Currency code"]), "target": slot("target to to_currency quote", lambda k: k.r.choice(CODES), about=["Currency code"])},
        asks=["What is the exchange rate of {source} to {target}?", "Exchange rate from {source} to {target}?", "Get the rate of {source} in {target}."]),
    "share": dict(
        verbs="get fetch lookup check".split(), nouns=["stock price", "share price", "stock quote"], about=["Price of a share", "Get the latest stock price of a company", "Stock price by symbol"],
        slots={"symbol": slot("symbol ticker stock company code", lambda k: "".join(k.r.choice("ABCDEFGHIKLMNOPRSTVX") for _ in range(k.r.randrange(3, 5))), about=["Symbol of the share", "Ticker symbol"])},
        asks=["What is the stock price of {symbol}?", "How much is a share of {symbol}?", "Get the stock price of {symbol}.", "Price of {symbol} stock?", "What does {symbol} trade at?"],
        same=["What are the stock prices of {many}?", "Get the stock price of {many}."]),
    "table": dict(
        verbs="book reserve".split(), nouns=["table", "restaurant table", "dinner"], about=["Book a table in a restaurant", "Reserve a table"],
        slots={"guests": slot("guests people party_size persons numGuests", lambda k: k.r.randrange(1, 20), "integer", ["Number of guests"]), "day": slot("day date weekday when", lambda k: k.r.choice(DAYS), about=["Day of the week", "Day"])},
        asks=["Book a table for {guests} on {day}.", "Reserve a table for {guests} people on {day}.", "I need a table for {guests} on {day}."]),
    "event": dict(
        verbs="add create schedule new".split(), nouns=["event", "calendar event", "calendar entry", "appointment"], about=["Add an event to the calendar", "Create a calendar event", "Schedule an appointment"],
        slots={"title": slot("title name summary subject event", lambda k: k.r.choice(TITLES), about=["Title", "What it is"]), "day": slot("day date weekday", lambda k: k.r.choice(DAYS + [k.date()]), about=["Day", "Date"]),
               "hour": slot("hour time start start_hour startHour", lambda k: k.r.randrange(7, 23), "integer", ["Hour from 0 to 23", "Hour"])},
        asks=["Add {title} on {day} at {hour} to my calendar.", "Put {title} in the calendar for {day} at {hour}.", "Schedule {title} on {day} at {hour}.", "Create an event {title} on {day} at {hour}."]),
    "light": dict(
        verbs="turn switch set toggle control".split(), nouns=["light", "lights", "lamp", "room light"], about=["Switch a light", "Turn a light on or off", "Control the lights"],
        slots={"room": slot("room place location where area", lambda k: k.r.choice(ROOMS), about=["Room", "Name of the room"]),
               "on": slot("on state enabled is_on turn_on power", lambda k: k.r.random() < 0.5, "boolean", ["True for on", "Whether it is on"])},
        asks=["Turn {on} the light in the {room}.", "Switch the {room} light {on}.", "Turn {on} the lights in the {room}.", "Lights {on} in the {room}."]),
    "thermostat": dict(
        verbs="set adjust change".split(), nouns=["thermostat", "heating", "room temperature", "heater"], about=["Set the heating of a room", "Set the thermostat"],
        slots={"room": slot("room zone place location", lambda k: k.r.choice(ROOMS), about=["Room"]),
               "degrees": slot("degrees temperature temp value target_temp", lambda k: k.r.choice([k.r.randrange(14, 28), k.r.randrange(28, 56) / 2]), "number", ["Degrees", "Temperature in Celsius"])},
        asks=["Set the heating in the {room} to {degrees} degrees.", "Set the thermostat of the {room} to {degrees}.", "Heat the {room} to {degrees} degrees."]),
    "music": dict(
        verbs="play start stream".split(), nouns=["music", "songs", "song", "artist"], about=["Play songs of an artist", "Play music"],
        slots={"artist": slot("artist name band musician artist_name", Kit.full, about=["Name of the artist"]), "count": slot("count number limit n songs", lambda k: k.r.randrange(2, 30), "integer", ["Number of songs"], False)},
        asks=["Play music by {artist}.", "I want to hear {artist}.", "Play some songs by {artist}."], more={"count": ["Play {count} songs by {artist}."]}),
    "shop": dict(
        verbs="search find".split(), nouns=["products", "shop", "items", "catalog", "store"], about=["Search the shop", "Find products", "Search the catalog for products"],
        slots={"query": slot("query q search product text term keyword", Kit.thing, about=["What to look for", "Search text"]),
               "max": slot("max_price maxPrice price_limit limit budget", lambda k: k.r.randrange(5, 300), "number", ["Highest price"], False)},
        asks=["Search the shop for a {query}.", "Do you have a {query} in the shop?", "Find a {query} in the shop."], more={"max": ["Find a {query} under {max} euros.", "Search for a {query} for at most {max} euros."]}),
    "flight": dict(
        verbs="search find book get".split(), nouns=["flight", "flights", "plane"], about=["Search flights between two cities", "Find a flight"],
        slots={"source": slot("source from origin departure from_city departure_city", Kit.place, about=["City of departure", "Origin"]), "target": slot("target to destination arrival to_city arrival_city", Kit.place, about=["City of arrival", "Destination"]),
               "date": slot("date day departure_date when", lambda k: k.r.choice(DAYS + [k.date()]), about=["Day of the flight"], required=False)},
        asks=["Find a flight from {source} to {target}.", "Search flights from {source} to {target}.", "I need a flight from {source} to {target}."],
        more={"date": ["Find a flight from {source} to {target} on {date}.", "Search flights from {source} to {target} on {date}."]}),
    "hotel": dict(
        verbs="search find book reserve".split(), nouns=["hotel", "hotels", "hotel room", "room"], about=["Find a hotel in a city", "Book a hotel"],
        slots={"place": slot(PLACE, Kit.place, about=["City"]), "nights": slot("nights num_nights stay length", lambda k: k.r.randrange(1, 15), "integer", ["Number of nights"]),
               "breakfast": slot("breakfast with_breakfast include_breakfast includeBreakfast", lambda k: k.r.random() < 0.5, "boolean", ["With breakfast"], False)},
        asks=["Book a hotel in {place} for {nights} nights.", "Find a hotel in {place} for {nights} nights.", "I need a hotel for {nights} nights in {place}."],
        more={"breakfast": ["Book a hotel in {place} for {nights} nights {breakfast} breakfast.", "Find a hotel in {place} for {nights} nights {breakfast} breakfast."]}),
    "route": dict(
        verbs="get find plan calculate".split(), nouns=["route", "directions", "distance", "way"], about=["Route between two places", "Plan the way from one place to another"],
        slots={"source": slot("source from origin start from_place", Kit.place, about=["Start"]), "target": slot("target to destination end to_place", Kit.place, about=["End", "Destination"]),
               "mode": slot("mode transport travel_mode by vehicle", lambda k: k.r.choice(["car", "bus", "train", "bike"]), about=["Means of transport"], required=False, enum=["car", "bus", "train", "bike"])},
        asks=["How do I get from {source} to {target}?", "Plan a route from {source} to {target}.", "Show me the way from {source} to {target}.", "How far is it from {source} to {target}?"],
        more={"mode": ["How do I get from {source} to {target} by {mode}?", "Plan a route from {source} to {target} by {mode}."]}),
    "stock": dict(
        verbs="get check count".split(), nouns=["stock", "inventory", "stock level", "items in store"], about=["Number of items in store", "Check the inventory"],
        slots={"item": slot("item product name article sku", Kit.thing, about=["Name of the item", "Item"])},
        asks=["How many pieces of {item} are in store?", "How many of the item {item} do we have?", "Check the stock of {item}.", "Do we have {item} in store?"],
        same=["Check the stock of {many}.", "How many pieces of {many} are in store?"]),
    "calc": dict(
        verbs="calculate compute evaluate calc".split(), nouns=["expression", "math", "", "number"], about=["Evaluate an expression", "Calculate", "A calculator"],
        slots={"expression": slot("expression expr formula input calculation", lambda k: "%d %s %d" % (k.r.randrange(2, 10000), k.r.choice("+-*/"), k.r.randrange(2, 1000)), about=["Expression to evaluate", "Expression"])},
        asks=["Use the calculator for {expression}.", "What is {expression}? Use the tool.", "Calculate {expression} with the tool.", "Use the tool to compute {expression}."]),
    "web": dict(
        verbs="search query lookup".split(), nouns=["web", "internet", "google", "online"], about=["Search the web", "Search the internet for information"],
        slots={"query": slot("query q search_query text keywords term", lambda k: k.r.choice([k.r.choice(ODD_B), "%s in %s" % (k.r.choice(NOUNS), k.place()), "%s %s" % (k.r.choice(ADJ), k.r.choice(THINGS)), k.full()]), about=["What to search for", "Search query"]),
               "limit": slot("limit n max_results count num_results", lambda k: k.r.randrange(2, 20), "integer", ["Number of results"], False)},
        asks=["Search the web for {query}.", "Search for {query} on the internet.", "Look up {query} online.", "Google {query}.", "Find information about {query} on the web."],
        more={"limit": ["Search the web for {query} and show {limit} results.", "Find {limit} results about {query} on the web."]}),
    "file": dict(
        verbs="read open show cat view".split(), nouns=["file", "document", "text file", ""], about=["Read a file", "Returns the content of a file", "Opens a text file"],
        slots={"path": slot("path file filename file_path filePath name", Kit.file, about=["Path of the file", "File to read"])},
        asks=["Read the file {path}.", "Show me {path}.", "What is in {path}?", "Open {path}.", "Read {path}", "Print the content of {path}."], same=["Read the files {many}.", "Show me {many}.", "Open {many}."]),
    "save": dict(
        verbs="write save create".split(), nouns=["file", "text file", "to file"], about=["Write a file", "Save text to a file"],
        slots={"path": slot("path file filename file_path filePath", Kit.file, about=["Path of the file"]), "text": slot("content text data body contents", lambda k: k.r.choice(MESSAGES + SAYINGS), about=["What to write", "Content"])},
        asks=["Write \"{text}\" to {path}.", "Save the text \"{text}\" in {path}.", "Create the file {path} with the text \"{text}\"."]),
    "command": dict(
        verbs="run execute".split(), nouns=["command", "shell", "bash", "terminal"], about=["Run a shell command", "Execute a command in the terminal"],
        slots={"command": slot("command cmd script line", lambda k: k.r.choice(["ls -la", "git status", "make test", "pwd", "cat %s" % k.file(), "grep %s %s" % (k.word(), k.file()), "echo %s" % k.word(), "python %s.py" % k.word(), "ls %s" % k.word(), "git log -n %d" % k.r.randrange(1, 20)]), about=["Command to run", "The command"])},
        asks=["Run {command}", "Execute the command {command}", "Run the command: {command}", "Please run {command}", "Run `{command}` in the shell."]),
    "page": dict(
        verbs="fetch open get visit".split(), nouns=["url", "page", "web page", "website"], about=["Fetch a web page", "Get the content of a URL"],
        slots={"url": slot("url link address uri page", Kit.link, about=["Address of the page", "URL"])},
        asks=["Fetch {url}", "Open {url}", "Get the page {url}", "What is on {url} ?", "Load the website {url}"]),
    "note": dict(
        verbs="create add save take".split(), nouns=["note", "memo", "notes"], about=["Save a note", "Take a note"],
        slots={"text": slot("text note content body", lambda k: k.r.choice(MESSAGES + SAYINGS), about=["Text of the note"])},
        asks=["Take a note: {text}", "Note: {text}", "Write down: {text}", "Save this note: {text}"]),
    "todo": dict(
        verbs="add create".split(), nouns=["todo", "task", "todo item"], about=["Add a task to the list", "Create a todo"],
        slots={"task": slot("task title text item name", lambda k: k.r.choice(["buy %s" % k.r.choice(FRUITS), "call %s" % k.person(), "clean the %s" % k.r.choice(ROOMS), "repair the %s" % k.thing(), "write to %s" % k.person()]), about=["What to do"]),
               "priority": slot("priority importance level prio", lambda k: k.r.choice(["low", "medium", "high"]), about=["How important"], required=False, enum=["low", "medium", "high"])},
        asks=["Add {task} to my todo list.", "New task: {task}", "Put {task} on my list."], more={"priority": ["Add {task} to my todo list with {priority} priority."]}),
    "reminder": dict(
        verbs="set create add".split(), nouns=["reminder", "alert"], about=["Set a reminder", "Reminds you of something"],
        slots={"text": slot("text task about title what", lambda k: k.r.choice(TITLES), about=["What to remember"]), "time": slot("time at when hour clock", Kit.clock, about=["Time of day", "When"])},
        asks=["Remind me of {text} at {time}.", "Set a reminder for {text} at {time}.", "At {time} remind me of {text}."]),
    "alarm": dict(
        verbs="set create".split(), nouns=["alarm", "alarm clock", "wake up"], about=["Set an alarm", "Set the alarm clock"],
        slots={"time": slot("time at alarm_time clock when", Kit.clock, about=["Time of day"])}, asks=["Set an alarm for {time}.", "Wake me at {time}.", "Set the alarm clock to {time}."]),
    "parcel": dict(
        verbs="track find get".split(), nouns=["package", "parcel", "order", "shipment", "order status"], about=["Where a package is", "Track an order", "Status of an order"],
        slots={"id": slot("id order_id tracking_number orderId number code", Kit.code, about=["Number of the order", "Tracking number"])},
        asks=["Where is my package {id}?", "Track order {id}.", "What is the status of order {id}?", "Where is order {id}?"], same=["Track the orders {many}.", "Where are the orders {many}?"]),
    "contact": dict(
        verbs="find get lookup search".split(), nouns=["contact", "phone number", "person", "phone"], about=["Find a contact", "Phone number of a person"],
        slots={"name": slot("name person contact full_name who", Kit.full, about=["Name of the person"])}, asks=["What is the phone number of {name}?", "Find the number of {name}.", "Look up {name} in my contacts."],
        same=["Find the phone numbers of {many}.", "Look up {many} in my contacts."]),
    "recipe": dict(
        verbs="find search get".split(), nouns=["recipe", "recipes", "dish"], about=["Find a recipe", "Search recipes by ingredients"],
        slots={"ingredients": slot("ingredients items with foods list", lambda k: k.r.sample(FRUITS, k.r.randrange(2, 5)), "array", ["What is in it", "Ingredients"], True, "string")},
        asks=["Find a recipe with {ingredients}.", "What can I cook with {ingredients}?", "Give me a recipe with {ingredients}."]),
    "average": dict(
        verbs="compute get calculate".split(), nouns=["average", "mean", "statistics", "mean value"], about=["Average of numbers", "Compute the mean of a list"],
        slots={"numbers": slot("numbers values data list xs", lambda k: [k.r.randrange(1, 100) for _ in range(k.r.randrange(2, 7))], "array", ["The numbers"], True, "integer")},
        asks=["Use the tool for the average of {numbers}.", "Compute the average of {numbers} with the tool.", "What is the average of {numbers}? Use the tool."]),
    "invite": dict(
        verbs="invite add".split(), nouns=["people", "guests", "attendees", "users"], about=["Invite people to a meeting", "Add guests to an event"],
        slots={"people": slot("people names guests attendees users", lambda k: [k.person() for _ in range(k.r.randrange(2, 5))], "array", ["Names"], True, "string"), "event": slot("event title meeting name", lambda k: k.r.choice(TITLES), about=["Which event"])},
        asks=["Invite {people} to the {event}.", "Add {people} to the {event}."]),
    "pay": dict(
        verbs="transfer send pay".split(), nouns=["money", "payment", "funds"], about=["Send money to a person", "Make a payment"],
        slots={"to": slot("to recipient person payee name", Kit.full, about=["Who gets the money"]), "amount": slot("amount value sum euros", lambda k: k.r.choice([k.number(), k.real()]), "number", ["Amount"])},
        asks=["Send {amount} euros to {to}.", "Pay {to} {amount} euros.", "Transfer {amount} euros to {to}."]),
    "taxi": dict(
        verbs="order call book".split(), nouns=["taxi", "cab", "ride"], about=["Order a taxi", "Call a cab"],
        slots={"source": slot("source from pickup start", lambda k: "%s Street %d" % (k.word().capitalize(), k.r.randrange(1, 100)), about=["Where to start"]), "target": slot("target to destination dropoff", lambda k: "%s Street %d" % (k.word().capitalize(), k.r.randrange(1, 100)), about=["Where to go"])},
        asks=["Order a taxi from {source} to {target}.", "Get me a cab from {source} to {target}.", "Call a taxi from {source} to {target}."]),
    "air": dict(
        verbs="get check".split(), nouns=["air quality", "pollution", "air"], about=["Air quality of a city", "How clean the air is"],
        slots={"place": slot(PLACE, Kit.place, about=["City"])}, asks=["How is the air in {place}?", "What is the air quality in {place}?", "Air quality in {place}?"], same=["What is the air quality in {many}?"]),
    "sun": dict(
        verbs="get lookup".split(), nouns=["sunrise", "sunset", "sun times"], about=["When the sun rises and sets", "Times of sunrise and sunset"],
        slots={"place": slot(PLACE, Kit.place, about=["City"]), "date": slot("date day when", lambda k: k.r.choice(DAYS + [k.date()]), about=["Day"], required=False)},
        asks=["When does the sun rise in {place}?", "Sunset in {place}?", "When does the sun set in {place}?"], more={"date": ["When does the sun rise in {place} on {date}?"]}),
    "dice": dict(
        verbs="roll throw".split(), nouns=["dice", "die"], about=["Roll dice", "Throw dice"],
        slots={"count": slot("count n number num_dice", lambda k: k.r.randrange(1, 9), "integer", ["How many dice"]), "sides": slot("sides faces num_sides", lambda k: k.r.choice([4, 6, 8, 10, 12, 20]), "integer", ["Sides of a die"])},
        asks=["Roll {count} dice with {sides} sides.", "Throw {count} dice with {sides} sides each."]),
    "issue": dict(
        verbs="create open report".split(), nouns=["issue", "ticket", "bug"], about=["Create an issue in a repository", "Report a bug"],
        slots={"title": slot("title name summary subject", lambda k: "%s is %s" % (k.r.choice(NOUNS), k.r.choice(["broken", "slow", "missing", "wrong", "empty"])), about=["Title"]), "repo": slot("repo repository project repo_name", lambda k: "%s/%s" % (k.word(), k.word()), about=["Repository"])},
        asks=["Open an issue in {repo}: {title}", "Create an issue in {repo} with the title {title}", "Report a bug in {repo}: {title}"]),
    "ship": dict(
        verbs="create order".split(), nouns=["delivery", "shipping", "shipping label"], about=["Order a delivery to an address", "Send goods to an address"],
        slots={"item": slot("item product goods what", Kit.thing, about=["What to send"]), "street": slot("street road street_name line1", lambda k: "%s Street %d" % (k.word().capitalize(), k.r.randrange(1, 100)), about=["Street"]),
               "place": slot("city town place", Kit.place, about=["City"]), "zip": slot("zip postcode postal_code zipCode", lambda k: "%05d" % k.r.randrange(1000, 100000), about=["Postal code"])},
        nested=("address destination recipient_address to", ["street", "place", "zip"]),
        asks=["Send a {item} to {street}, {zip} {place}.", "Deliver a {item} to {street} in {place}, postal code {zip}.", "Ship a {item} to {street}, {place}, {zip}."]),
    "book": dict(
        verbs="find search".split(), nouns=["book", "books", "library"], about=["Search the library", "Find books of an author"],
        slots={"author": slot("author writer name by", Kit.full, about=["Name of the author"]), "year": slot("year published since", lambda k: k.r.randrange(1900, 2026), "integer", ["Year"], False)},
        asks=["Find books by {author}.", "Which books did {author} write?"], more={"year": ["Find books by {author} from {year}."]}),
    "define": dict(
        verbs="define lookup get".split(), nouns=["word", "definition", "dictionary", "meaning"], about=["Look up a word in the dictionary", "Meaning of a word"],
        slots={"word": slot("word term text query entry", lambda k: k.r.choice([k.word(), k.r.choice(ADJ), k.r.choice(THINGS)]), about=["The word"])},
        asks=["Look up the word {word} in the dictionary.", "Define {word}.", "What does the word {word} mean?"], same=["Define {many}.", "Look up the words {many} in the dictionary."]),
    "translate": dict(
        verbs="translate".split(), nouns=["text", "", "sentence", "phrase"], about=["Translate a text", "Translates text into another language"], polite=False,
        slots={"text": slot("text sentence input source_text phrase", lambda k: k.r.choice(SAYINGS), about=["Text to translate"]), "to": slot("to language target target_language lang targetLanguage", lambda k: k.r.choice(["French", "German", "Spanish", "Italian", "Dutch", "Polish", "Greek"]), about=["Language"])},
        asks=["Translate \"{text}\" to {to}.", "Translate \"{text}\" into {to}.", "How do you say \"{text}\" in {to}?"]),
}
FRAME = {"celsius": ["celsius", "fahrenheit"], "C": ["C", "F"], "metric": ["metric", "imperial"]}


def subject_tool(k, topic):
    """A tool of a known subject, with the request that it answers; the values are in its parameters."""
    s, r = SUBJECTS[topic], k.r
    name, style = k.tool_name(lambda: (r.choice(s["verbs"]), [w for w in r.choice(s["nouns"]).split()]))
    described = r.random() < 0.75
    params, by_slot = [], {}
    for key, sl in s["slots"].items():
        p = Param(styled([r.choice(sl["names"])], style) if r.random() < 0.8 else r.choice(sl["names"]), "", sl["kind"], None,
                  r.choice(sl["about"]) if described and sl["about"] and r.random() < 0.7 else None, sl["required"], sl["enum"])
        if p.name in [q.name for q in params]: p.name = key
        by_slot[key] = p
        params.append(p)
    unit = None
    if topic in ("weather", "forecast") and r.random() < 0.45:
        frame = r.choice(list(FRAME.values()))
        unit = Param(r.choice(["unit", "units", "scale", "temperature_unit"]), "", "string", None, r.choice([None, "Unit of the temperature", "Unit"]), False, frame)
        params.append(unit)
    if r.random() < 0.15: params.append(unused(k, params))
    if "nested" in s and r.random() < 0.6:
        names, inside = s["nested"]
        outer = Param(r.choice(names.split()), "", "object", None, None, True, inner=[by_slot[i] for i in inside])
        params = [p for p in params if p not in outer.inner] + [outer]
    elif len(params) > 1 and r.random() < (0.08 if k.hard else 0.04):
        outer = Param(r.choice(GROUPS[:6]), "", "object", None, None, True, inner=list(params))
        params = [outer]
    r.shuffle(params)
    tool = Tool(name, r.choice(s["about"]) if described else "", params, None, topic, s)
    tool.main = by_slot[next(iter(s["slots"]))]

    def request():
        extra = [key for key, sl in s["slots"].items() if not sl["required"]]
        used = r.choice(extra) if extra and "more" in s and r.random() < 0.5 else None
        words = {}
        for key, sl in s["slots"].items():
            p = by_slot[key]
            p.value = sl["value"](k) if sl["required"] or key == used else None
            if p.kind == "number" and p.value is not None and p.value == int(p.value): p.value = int(p.value)
            words[key] = "" if p.value is None else said_as(key, p.value)
        if by_slot.get("source") and by_slot.get("target") and by_slot["source"].value == by_slot["target"].value: return request()
        text = r.choice(s["more"][used] if used else s["asks"]).format(**words)
        if unit:
            unit.value = None
            if r.random() < 0.5 and text[-1] in "?." and "today" not in text and "umbrella" not in text:
                i = r.randrange(2)
                unit.value = unit.enum[i]
                text = text[:-1] + " in " + {"m": "metric units", "i": "imperial units"}.get(unit.value[0], ["Celsius", "Fahrenheit"][i]) + text[-1]
        return text
    tool.request = request
    return tool


def said_as(key, v):
    if key == "on": return "on" if v else "off"
    if key == "breakfast": return "with" if v else "without"
    return text_of(v)


# --- tools of any words -------------------------------------------------------------------------------------
def unused(k, params, style="snake"):
    """An optional parameter that nobody mentions"""
    r = k.r
    taken = {p.name for p in params}
    while True:
        x = r.random()
        if x < 0.3: p = Param(styled([r.choice(OPTIONS)], style), "", "boolean", None, None, False)
        elif x < 0.6: p = Param(styled([r.choice(COUNTS)], style), "", "integer", None, None, False)
        elif x < 0.8:
            name, values = r.choice(ENUMS)
            p = Param(name, "", "string", None, None, False, values)
        else: p = Param(styled([r.choice(TEXTS)], style), "", "string", None, None, False)
        if p.name not in taken: return p


def extra_param(k, style, taken):
    """A named parameter of any kind, with its value; `said` is how a request mentions it"""
    r = k.r
    while True:
        x = r.random()
        enum, kind = None, "string"
        if x < 0.28:
            words = r.choice(COUNTS) if r.random() < 0.8 else k.word()
            kind = r.choice(["integer", "integer", "number"])
            value = k.number() if kind == "integer" else k.real()
        elif x < 0.46: words, value = r.choice(TEXTS) if r.random() < 0.75 else k.word(), k.name_value()
        elif x < 0.64:
            words, enum = r.choice(ENUMS)
            if r.random() < 0.2: words = k.word()
            if r.random() < 0.15: enum = [k.word() for _ in range(r.randrange(2, 5))]
            value = r.choice(enum)
        elif x < 0.80: words, kind, value = r.choice(OPTIONS) if r.random() < 0.85 else k.word(), "boolean", r.random() < 0.6
        elif x < 0.90:
            words, kind = r.choice(["tags", "labels", "names", "members", "ids", "keywords", "cities", "items", "codes"]), "array"
            if words == "ids" or r.random() < 0.2: enum, value = "integer", [k.number() for _ in range(r.randrange(1, 4))]
            else: enum, value = "string", [k.r.choice([k.word, k.thing, k.place])() for _ in range(r.randrange(1, 4))]
        else: words, value = r.choice(["start_date", "end_date", "due_date", "date", "email", "url", "time"]), ""
        if words.endswith("date"): value = k.date()
        elif words == "email": value = k.mail()
        elif words == "url": value = k.link()
        elif words == "time": value = k.clock()
        name = styled([words], style)
        if name in taken or words in ("description", "type", "properties", "required", "nullable"): continue
        p = Param(name, spaced(words), kind, value, r.choice([None, None, "The %s" % spaced(words), spaced(words).capitalize(), "%s to use" % spaced(words).capitalize()]), r.random() < 0.5, enum)
        w = p.words
        if kind == "boolean": p.said = r.choice(["with %s on" % w, "with %s true" % w, "%s: true" % w, "with %s" % w] if value else ["with %s off" % w, "with %s false" % w, "%s: false" % w, "without %s" % w])
        else: p.said = r.choice(["with %s %s", "with the %s %s", "%s %s", "%s: %s", "%s = %s", "with %s %s"]) % (w, text_of(value))
        return p


ASKS = {    # {n}: what the tool is about, {v}: the main value, {verb}: the verb of the name
    "read": ["What is the {n} of {v}?", "Get the {n} of {v}.", "Show me the {n} of {v}.", "{Verb} the {n} of {v}.", "{Verb} the {n} for {v}.", "Give me the {n} of {v}.", "{n} of {v}?", "I need the {n} of {v}.", "Tell me the {n} of {v}."],
    "make": ["{Verb} a {n} for {v}.", "{Verb} a new {n} called {v}.", "{Verb} the {n} {v}.", "I need a new {n} for {v}.", "Please {verb} a {n} named {v}."],
    "drop": ["{Verb} the {n} {v}.", "{Verb} the {n} of {v}.", "Please {verb} the {n} {v}.", "I want to {verb} the {n} of {v}."],
    "set": ["{Verb} the {n} of {v}.", "{Verb} the {n} for {v}.", "Please {verb} the {n} {v}."],
    "run": ["{Verb} the {n} {v}.", "{Verb} the {n} of {v}.", "Please {verb} the {n} for {v}."],
    "stop": ["{Verb} the {n} {v}.", "{Verb} the {n} of {v}.", "Please {verb} the {n} {v}."],
    "send": ["{Verb} the {n} to {v}.", "{Verb} a {n} to {v}.", "Please {verb} the {n} to {v}."],
    "search": ["{Verb} the {n} for {v}.", "{Verb} {n} with {v}.", "{Verb} all {n} of {v}."],
}
ABOUTS = {"read": ["Get the {n}", "Returns the {n}", "{Verb} the {n} of something", "Reads a {n}"], "make": ["Create a new {n}", "{Verb} a {n}", "Makes a {n}"], "drop": ["Delete a {n}", "{Verb} a {n}", "Removes the {n}"],
          "set": ["Change the {n}", "{Verb} the {n}"], "run": ["Start the {n}", "{Verb} a {n}"], "stop": ["Stop the {n}", "{Verb} a {n}"], "send": ["Send a {n}", "{Verb} the {n} to somebody"], "search": ["Search the {n}", "{Verb} {n}"]}


def noun_words(k):
    r = k.r
    while True:
        x = r.random()
        if x < 0.35: n = [k.word()]
        elif x < 0.75: n = [r.choice(NOUNS)]
        elif x < 0.9: n = [r.choice(NOUNS), r.choice(NOUNS)]
        else: n = [r.choice(GOODS + THINGS + ANIMALS + PLACES)]
        if not set(n) & k.taken and len(set(n)) == len(n): return n


def made_up(k, noun=None, verb=None):
    """A tool of any words: a verb, what it is about, a main parameter and up to three more"""
    r = k.r
    words = noun or noun_words(k)
    kind = r.choice(list(VERBS)) if not verb else next(x for x in VERBS if verb in VERBS[x])
    state = {}

    def name():
        state["verb"] = verb or r.choice(VERBS[kind])
        return state["verb"], words
    tool_name, style = k.tool_name(name)
    v, n = state["verb"], " ".join(words)
    if kind in ("read", "run", "stop", "search") and r.random() < 0.1: return bare(k, tool_name, kind, v, words)
    main = Param(styled([r.choice(MAIN) if r.random() < 0.85 else k.word()], style), "", "string", None, None)
    if r.random() < 0.4: main.about = r.choice(["The {n}", "Name of the {n}", "Which {n}", "What to {verb}"]).format(n=n, verb=v)
    if r.random() < 0.12: main.kind = "integer"
    params, n_extra = [main], r.choices([0, 1, 2, 3], [10, 35, 33, 22] if k.hard else [45, 30, 17, 8])[0]
    mentioned = []
    for _ in range(n_extra):
        p = extra_param(k, style, {q.name for q in params} | {q.words for q in params})
        params.append(p)
        if p.required or r.random() < (0.7 if k.hard else 0.5): mentioned.append(p)
        else: p.value = None
    if r.random() < 0.25: params.append(unused(k, params, style))
    about = r.choice(ABOUTS[kind]).format(n=n, verb=v, Verb=v.capitalize()) if r.random() < 0.72 else ""
    shown = params[:]
    if n_extra and r.random() < (0.3 if k.hard else 0.2):
        inner = params[1:]
        outer = Param(styled([r.choice(GROUPS)], style), "", "object", None, None, any(p.required for p in inner), inner=inner)
        if outer.name != main.name: shown = [main, outer]
    r.shuffle(shown)
    tool = Tool(tool_name, about, shown, None, n, None)
    tool.main, tool.verb, tool.words = main, v, words

    def request():
        main.value = k.number() if main.kind == "integer" else k.name_value()
        if r.random() < 0.06:
            text = r.choice(["Call {t} with {a}", "Use {t} with {a}.", "Run {t}: {a}"]).format(t=tool_name, a=", ".join(["%s %s" % (main.name, main.value)] + [p.said for p in mentioned]))
            return text
        text = r.choice(ASKS[kind]).format(n=n, v=main.value, verb=v, Verb=v.capitalize())
        if mentioned:
            end = text[-1] if text[-1] in "?." else ""
            body = text[:len(text) - len(end)]
            r.shuffle(mentioned)
            glue = r.choice([", ", " "]) if mentioned[0].said.startswith("with") else ", "
            text = body + glue + (", ".join(p.said for p in mentioned[:-1]) + " and " + mentioned[-1].said if len(mentioned) > 1 else mentioned[0].said) + end
        return text[0].upper() + text[1:]
    tool.request = request
    return tool


def bare(k, name, kind, verb, words):
    """A tool without parameters that must be given"""
    r, n = k.r, " ".join(words)
    about = r.choice(ABOUTS[kind]).format(n=n, verb=verb, Verb=verb.capitalize()) if r.random() < 0.72 else ""
    tool = Tool(name, about, [unused(k, [])] if r.random() < 0.4 else [], None, n, None)
    tool.main, tool.verb, tool.words = Param("", "", "none"), verb, words
    wordings = ["{Verb} the {n}.", "Please {verb} the {n}.", "{Verb} the {n} now."] + (["What is the {n}?", "Show me the {n}.", "Tell me the {n}."] if kind == "read" else [])
    tool.request = lambda: r.choice(wordings).format(n=n, verb=verb, Verb=verb.capitalize())
    return tool


# --- results and answers ----------------------------------------------------------------------------------------
def result_of(k, tool):
    """A result, as an object, a value or a JSON text, and the sentence that tells it"""
    r = k.r
    place = tool.main.value
    if r.random() < 0.06:
        e = r.choice(FAILURES)
        return r.choice([shown_as(k, {"error": e})[0], "Error: " + e]), "The tool failed: %s." % e
    if tool.topic == "weather" and r.random() < 0.85:
        sky, temp, d = r.choice(WEATHER), r.randrange(-15, 38) if r.random() < 0.8 else round(r.uniform(-15, 38), 1), {}
        x = r.random()
        if x < 0.85: d[r.choice(TEMP)] = temp if r.random() < 0.9 else str(temp)
        if x > 0.25: d[r.choice(SKY)] = sky
        if r.random() < 0.3: d[r.choice(["humidity", "wind", "wind_kph"])] = r.randrange(1, 100)
        if r.random() < 0.25: d["unit"] = r.choice(["celsius", "C", "fahrenheit"])
        if r.random() < 0.25: d[r.choice(["location", "city"])] = place
        items = list(d.items())
        r.shuffle(items)
        if r.random() < 0.12:
            return r.choice(["%s, %s C", "%s, %s degrees", "%s and %s C", "%s %s", "The weather is %s at %s degrees"]) % (sky, temp), "It is %s in %s at %s degrees." % (sky, place, temp)
        if 0.25 < x < 0.85: text = "It is %s in %s at %s degrees." % (sky, place, temp)
        elif x < 0.85: text = "It is %s degrees in %s." % (temp, place)
        else: text = "It is %s in %s." % (sky, place)
        return shown_as(k, dict(items))[0], text
    if tool.topic == "time" and r.random() < 0.85:
        t = k.clock()
        return r.choice([t, shown_as(k, {r.choice(["time", "local_time", "now"]): t})[0]]), "It is %s in %s." % (t, place)
    x = r.random()
    if x < 0.18:
        w = r.choice(DONE)
        return r.choice([w, shown_as(k, {"status": w})[0], shown_as(k, {"success": True})[0], shown_as(k, {"ok": True})[0]]), "Done."
    if x < 0.36:
        v = r.choice([k.number(), k.real(), k.name_value(), k.name_value(), r.choice(SAYINGS), "%d %s" % (k.number(), r.choice(FRUITS))])
        return v if r.random() < 0.5 and not k.m.test else str(v), "The result is %s." % v
    if x < 0.48:
        vs = [k.name_value() for _ in range(r.randrange(0, 5))]
        return vs if r.random() < 0.4 and not k.m.test else json.dumps(vs), "The results are %s." % listed(vs) if len(vs) > 1 else "The result is %s." % vs[0] if vs else "There are no results."
    d = {}
    for _ in range(r.choice([1, 1, 2, 2, 3])):
        key = r.choice([r.choice(COUNTS), r.choice(TEXTS), r.choice(NOUNS), k.word(), "id", "name", "price", "total"])
        if r.random() < 0.25: key = styled([key, r.choice(NOUNS)], r.choice(["snake", "camel"]))
        d[key] = r.choice([k.number, k.real, k.name_value, k.name_value, k.date, lambda: r.random() < 0.5])()
    return shown_as(k, d, True)


def shown_as(k, d, telling=False):
    """An object as an object or, as clients send it, as JSON text; with `telling` the sentence too, in the order that the model sees"""
    r = k.r
    if r.random() < 0.4 and not k.m.test: shown, order = d, sorted(d, key=str.lower)
    else: shown, order = json.dumps(d, ensure_ascii=False, separators=r.choice([(", ", ": "), (",", ":")])), list(d)
    text = "The " + listed(["%s%s is %s" % ("the " if i else "", key, text_of(d[key])) for i, key in enumerate(order)]) + "." if telling else ""
    return shown, text


# --- samples ------------------------------------------------------------------------------------------------------
class NoRequest(Exception):
    """None of the few requests that a tool has is of this split."""


def plain(text):
    return text.lower().strip(" ?.!")


def asked(k, tool):
    """A request of this split; the values of the tool's parameters follow it"""
    got, tries = [], iter(range(500))

    def draw():
        if next(tries, None) is None: raise NoRequest
        got[:] = [tool.request()]
        return plain(got[0])
    k.m.draw("request", draw)
    return got[0]


def any_tool(k):
    free = [t for t in SUBJECTS if not set(related(t)) & k.taken]
    if k.r.random() < 0.45 and free:
        t = k.r.choices(free, [8 if x == "weather" else len(SUBJECTS[x]["slots"]) ** 2 if k.hard else 1 for x in free])[0]
        k.taken |= set(related(t))
        return subject_tool(k, t)
    t = made_up(k)
    k.taken |= set(t.words)
    return t


RELATED = [("weather", "forecast", "air", "sun", "thermostat"), ("time", "timer", "alarm", "reminder", "sun", "event"), ("message", "mail", "note", "contact"), ("exchange", "rate", "pay"),
           ("share", "stock", "shop"), ("file", "save", "command", "page", "define"), ("table", "hotel", "book", "event"), ("flight", "route", "taxi"), ("todo", "reminder", "note", "event"),
           ("parcel", "ship"), ("web", "shop", "page", "define", "book"), ("calc", "average"), ("issue", "todo"), ("invite", "event")]


def related(topic):
    """The topic with those that one must not be offered beside it, and the words of its names"""
    out = {topic}
    for g in RELATED:
        if topic in g: out |= set(g)
    words = {w for n in SUBJECTS[topic]["nouns"] for w in n.split()}
    return out | words


def others(k, n):
    return [any_tool(k) for _ in range(n)]


def same_noun(k, tool):
    """Tools about the same thing that do something else with it"""
    r = k.r
    kinds = [x for x in VERBS if tool.verb not in VERBS[x]]
    return [made_up(k, tool.words, r.choice([v for v in VERBS[x] if v not in ("find", "open")])) for x in r.sample(kinds, r.randrange(1, 3))]


def odd_word(k):
    """A word, a name or a fragment of code that the tokenizer cuts into small pieces"""
    r = k.r
    w = k.word()
    return r.choice([w, w, w.capitalize(), w.upper(), "`%s`" % w, "--" + w, "%s_%s" % (w, r.choice(NOUNS)), "%s()" % w, k.file(), k.link(), str(k.number()),
                     '{"%s": %d}' % (w, k.number()), "<%s>" % w, "**%s**" % w, "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randrange(2, 9)))])


def long_text(k, n, odd=0.0):
    """About n words; `odd` is the share of unusual ones"""
    r = k.r
    out = []
    while len(out) < n:
        s = [r.choice(FILLERS) if r.random() < 0.8 else r.choice(NOUNS) for _ in range(r.randrange(4, 16))]
        if odd: s = [odd_word(k) if r.random() < odd else x for x in s]
        out += [s[0].capitalize()] + s[1:-1] + [s[-1] + r.choice([".", ".", ":", "\n", ".\n\n"])]
        if r.random() < 0.1: out.append("\n- ")
    return " ".join(out).replace("\n ", "\n").strip()


def verbose(k, s):
    """What agents send: long instructions and long descriptions"""
    r = k.r
    s.system = long_text(k, r.choice([20, 60, 150, 300] + [700, 1200] * k.hard))
    room = r.choice([0, 100, 300, 500] + [800] * k.hard)
    s.tools = [(n, (d + " " if d else "") + long_text(k, max(5, room // len(s.tools))) if room else d, ps) for n, d, ps in s.tools]
    if k.hard and r.random() < 0.3: s.reminder = long_text(k, r.choice([10, 40, 100, 200, 400]))
    if r.random() < 0.3: s.turns[0].user = long_text(k, r.choice([10, 40, 100])) + r.choice(["\n", "\n\n"]) + s.turns[0].user


def tools(m, gen):
    """One sample; `gen` is the module that has the other classes"""
    while True:
        m.keys = []
        try: return one_sample(m, gen)
        except NoRequest: pass


def one_sample(m, gen):
    k, r = Kit(m, gen), m.rng
    kind = r.choices(["one", "same", "two", "none", "direct", "turns"], [52, 7, 8, 11, 15, 7] if k.hard else [60, 8, 6, 10, 10, 6])[0]
    n_tools = r.choices([1, 2, 3, 4, 5, 6], [15, 17, 17, 17, 17, 17] if k.hard else [34, 20, 16, 12, 10, 8])[0]
    wordy = r.random() < (0.35 if kind == "direct" else 0.06)
    if wordy: n_tools += r.randrange(0, 8 if k.hard else 5)
    if kind == "same": return several(k, n_tools)
    tool = any_tool(k)
    offered = [tool]
    if kind == "two": offered.append(any_tool(k))
    if kind == "one" and not tool.subject and n_tools > 1 and r.random() < 0.25: offered += same_noun(k, tool)
    offered += others(k, max(0, n_tools - len(offered)))
    if kind == "turns": offered = offered[:4]
    order = offered[:]
    r.shuffle(order)
    s = Sample("", [], tools=[t.declared() for t in order])
    if kind == "none": refusal(k, s, tool, order)
    elif kind == "direct": direct(k, s)
    elif kind == "turns": conversation(k, s, offered)
    elif kind == "two": both(k, s, offered[:2])
    else: s.turns = [called(k, [tool], m.say(asked(k, tool)))]
    if kind in ("one", "none") and r.random() < 0.12: thinking(s)
    if not s.system and r.random() < 0.22: s.system = r.choice(SYSTEMS)
    if wordy: verbose(k, s)
    s.kind = kind
    return s


def agent(m, gen):
    """What coding agents send: long instructions, many tools, a reminder behind the question, and a question that needs none of them"""
    k, r = Kit(m, gen), m.rng
    k.hard = True
    s = Sample("", [], tools=[t.declared() for t in others(k, r.choice([0, 1, 2, 4, 6, 8, 10, 12, 16]))])
    odd = r.choice([0, 0.15, 0.3])
    if r.random() < 0.5: s.turns, s.thinking = gen.think(m).turns, True
    else: s.turns = r.choices([gen.arith, gen.word, gen.sort, gen.facts, gen.count], [70, 10, 8, 7, 5])[0](m).turns
    s.system = long_text(k, r.choice([0, 20, 100, 300, 700]), odd)
    room = r.choice([0, 0, 100, 400, 700])
    s.tools = [(n, (d + " " if d else "") + long_text(k, max(5, room // len(s.tools)), odd) if room else d, ps) for n, d, ps in s.tools]
    if r.random() < 0.5: s.reminder = long_text(k, r.choice([10, 60, 200, 500, 900, 1400]), odd)
    if r.random() < 0.4: s.turns[0].user = long_text(k, r.choice([10, 40, 100, 200]), odd) + r.choice(["\n", "\n\n"]) + s.turns[0].user
    return s


INSTRUCTIONS = """You are an assistant that works in a terminal and helps people with their code.
You have access to the tools that are listed below; call one when it helps and answer at once when it does not.
You have a working directory, and you must not write outside of it.
You can read, edit and run files, and you should say what you did in one or two lines.
You may be asked about files that do not exist. Say so then.
You will be given the name of the branch, the date and a list of open files.
I have no access to the network in this mode, and I can not install packages.
The user sees only your final message, so it must be complete.
The answer is shown as plain text; keep it short and do not repeat the question.
There are two modes: in the first one you plan, in the second one you change files.
Each tool returns its output as text, or an error with a reason.
If a command fails, read the message before you try again.
Never guess a path, a name or an address: look it up first.
Do not commit or push anything unless the user asks you to.
When several calls do not depend on each other, make them together.
Before you edit a file, read it; after you edited it, run the tests.
Use absolute paths. A relative path is taken from the directory that the session was started in.
IMPORTANT: answer in fewer than four lines unless the user wants detail.
Your context is limited, and older messages may be replaced with a summary.
Today's date is 2026-03-14. The platform is linux, the shell is bash.
This is a reminder of your list of tasks: it is empty at the moment. Do not mention it.
As you answer, you can use the following notes if they are relevant, which they often are not.
Please write tests in the style of the tests that are already there.
It has 12 files, 3 of them changed; 85 tests passed and 2 were skipped.
Returns the lines of the file with their numbers; long lines are cut after 2000 characters.
Runs a command in a new shell, with an optional timeout in milliseconds (up to 600000).
Example: if the user says "fix the build", you look for the first error and start there.
What is not in the list of tools can not be called. How many times you call one does not matter.
He or she may write in another language; you answer in the same one.
Type: string. Required: yes. Default: none. The description of what this call does, in five to ten words.""".split("\n")


def prose(k, n, odd):
    """About n words as in the instructions of coding agents: sentences, fillers, lists and names"""
    r = k.r
    out, size = [], 0
    while size < n:
        s = r.choice(INSTRUCTIONS) if r.random() < 0.6 else long_text(k, r.randrange(5, 30), odd)
        if r.random() < 0.3: s = " ".join(odd_word(k) if r.random() < 0.15 else w for w in s.split(" "))
        if r.random() < 0.1: s += "\n" + environment(k)
        size += s.count(" ") + 1
        out.append(s + r.choice([" ", " ", "\n", "\n\n", "\n- ", "\n\n# "]))
    return "".join(out).strip()


def environment(k):
    """Lines with dates, versions and counts, whose numbers belong to no question"""
    r = k.r
    n = lambda: r.choice([r.randrange(10), r.randrange(100), r.randrange(100), r.randrange(1000), r.randrange(10000)])
    lines = ["Today's date is %s." % k.date(), "The date is %s, the time %s." % (k.date(), k.clock()), " - OS Version: Linux %d.%d.%d-%s-v%d" % (n(), n(), n(), k.word(), n()),
             " - Files: %d changed, %d lines added, %d removed" % (n(), n(), n()), " - Shell: bash %d.%d" % (n(), n()), "%s %d.%d.%d" % (k.word(), n(), n(), n()),
             "Your knowledge ends in 20%02d-%02d." % (r.randrange(20, 30), r.randrange(1, 13)), "%d of %d tests passed." % (n(), n()), "Port %d, %d workers" % (n(), n()),
             "There's %s is %d-%02d-%02d." % (r.choice(FILLERS), 2000 + r.randrange(40), r.randrange(32), r.randrange(32)), "%d. %s" % (n(), r.choice(INSTRUCTIONS)), "%d %s and %d %s" % (n(), r.choice(NOUNS), n(), r.choice(NOUNS))]
    return "\n".join(r.choice(lines) for _ in range(r.choice([1, 1, 2, 4])))


def long_agent(m, gen, words):
    """A request of a coding agent of about this many words before the first question; often several questions follow each other"""
    k, r = Kit(m, gen), m.rng
    k.hard, odd = True, r.choice([0.1, 0.25, 0.4])
    parts = [r.random() ** 2 for _ in range(3)]
    sizes = [int(words * p / sum(parts)) for p in parts]
    s = Sample("", [], tools=[t.declared() for t in others(k, r.choice([0, 4, 8, 10, 12, 16, 24]))])
    s.thinking = r.random() < 0.5
    makers, weights = [gen.arith, gen.word, gen.sort, gen.facts, gen.count, gen.convert], [70, 8, 8, 6, 4, 4]
    for i in range(1 if r.random() < 0.7 else r.randrange(2, 9)):
        s.turns.append(r.choices(makers, weights)[0](m).turns[0])
        if i and r.random() < 0.5: s.turns[-1].user = prose(k, r.choice([10, 40, 100]), odd) + "\n\n" + s.turns[-1].user
    if s.thinking: s.turns[-1] = (plain_thought(m, gen) if r.random() < 0.85 else gen.think(m)).turns[0]
    s.system = prose(k, sizes[0], odd)
    s.tools = [(n, (d + " " if d else "") + prose(k, max(3, sizes[1] // len(s.tools)), odd), ps) for n, d, ps in s.tools]
    if r.random() < 0.7: s.reminder = prose(k, sizes[2], odd)
    if s.reminder and r.random() < 0.7: s.reminder += r.choice(["\n", "\n\n"]) + environment(k)
    if not s.reminder or r.random() < 0.5: s.turns[0].user = prose(k, min(sizes[2], r.choice([50, 200, 1500])), odd) + r.choice(["\n", "\n\n"]) + s.turns[0].user
    return s


def plain_thought(m, gen):
    """A sum, thought about"""
    wordings, steps, result = gen.operation(m)
    return Sample("", [Turn(m.say(*wordings), "The answer is %s." % result, "\n".join(steps))], thinking=True)


def called(k, ts, user):
    """The turn that calls each tool once; half of the time with results and their answer"""
    calls = [(t.name, t.arguments()) for t in ts]
    if k.r.random() < 0.5: return Turn(user, "", "", calls, [])
    found = [result_of(k, t) for t in ts]
    return Turn(user, " ".join(a for _, a in found), "", calls, [(t.name, v) for t, (v, _) in zip(ts, found)])


def thinking(s):
    t = s.turns[-1]
    s.thinking = True
    if not t.calls: t.thought = "No tool fits."
    else:
        name, args = t.calls[0]
        t.thought = "The user needs %s. I call it with %s." % (name, ", ".join("%s = %s" % (x, json.dumps(args[x], ensure_ascii=False)) for x in sorted(args, key=str.lower))) if args else "The user needs %s." % name


def refusal(k, s, tool, order):
    """The tool that it needs is not there"""
    left = [t for t in order if t is not tool] or [any_tool(k)]
    if k.hard and "place" in (tool.subject or {}).get("slots", {}):        # one that takes a place too is no better
        near = [t for t in SUBJECTS if "place" in SUBJECTS[t]["slots"] and t not in related(tool.topic)]
        left = [subject_tool(k, k.r.choice(near + ["weather", "time"]))] + left[1:]
        if left[0].topic in related(tool.topic): left = left[1:] or [made_up(k)]
    s.tools = [t.declared() for t in left]
    s.turns = [Turn(k.m.say(asked(k, tool)), NO_TOOL)]


def direct(k, s):
    """A question that needs no tool"""
    g, r = k.gen, k.r
    if r.random() < 0.25:
        s.turns, s.thinking = g.think(k.m).turns, True
        return
    make = r.choices([g.arith, g.facts, g.sort, g.compare, g.json_class, g.count, g.word], [60, 8, 8, 5, 8, 5, 6])[0]
    s.turns = make(k.m).turns
    if r.random() < 0.12 and not k.m.test:
        u, v = r.choice(list(SMALL_TALK.items()))
        s.turns = [Turn(u, v)]


def both(k, s, pair):
    k.r.shuffle(pair)
    a, b = (asked(k, t) for t in pair)
    end = b[-1] if b[-1] in "?." else ""
    user = k.r.choice([a.rstrip("?.") + " and " + b[0].lower() + b[1:].rstrip("?.") + end, a + " " + b, a + " And " + b[0].lower() + b[1:], a + " Also, " + b[0].lower() + b[1:]])
    s.turns = [called(k, pair, user)]


def conversation(k, s, offered):
    """Several turns, each with its own tool or none"""
    r = k.r
    for i in range(r.randrange(2, 4)):
        x = r.random()
        if x < 0.7 or not i:
            t = r.choice(offered)
            turn = called(k, [t], k.m.say(asked(k, t)))
            if not turn.responses:
                v, answer = result_of(k, t)
                turn.responses, turn.answer = [(t.name, v)], answer
        elif x < 0.9: turn = k.gen.arith(k.m).turns[0]
        else: turn = Turn(*r.choice([("Thanks!", "You are welcome!"), ("Thank you", "You are welcome!")]))
        s.turns.append(turn)
    if s.turns[-1].responses and r.random() < 0.5: s.turns[-1].responses, s.turns[-1].answer = [], ""


def several(k, n_tools):
    """Two or three calls of one tool"""
    r = k.r
    if r.random() < 0.6:
        topic = r.choices([t for t in SUBJECTS if "same" in SUBJECTS[t]], [3 if t == "weather" else 1 for t in SUBJECTS if "same" in SUBJECTS[t]])[0]
        k.taken |= set(related(topic))
        tool = subject_tool(k, topic)
        wordings = SUBJECTS[topic]["same"]
    else:
        while True:
            tool = made_up(k)
            if tool.main.kind == "string" and not any(p.required for p in tool.params if p is not tool.main): break
        k.taken |= set(tool.words)
        n = " ".join(tool.words)
        wordings = [x.format(n=n, verb=tool.verb, Verb=tool.verb.capitalize(), many="{many}") for x in ["{Verb} the {n} of {many}.", "{Verb} the {n} for {many}.", "Please {verb} the {n} of {many}."]]
    values = []

    def draw():
        tool.request()
        for p in all_params(tool):
            if p is not tool.main: p.value = None
        first = tool.main.value
        values[:] = [first]
        for _ in range(r.choice([1, 1, 1, 2])):
            tool.request()
            if tool.main.value not in values: values.append(tool.main.value)
        values[:] = [v for v in values if "," not in v]
        if not values: return draw()
        for p in all_params(tool):
            if p is not tool.main: p.value = None
        many = listed([str(v) for v in values])
        if len(values) == 2 and r.random() < 0.3: many = "%s and in %s" % tuple(values) if tool.topic in ("weather", "time", "air") else many
        draw.text = r.choice(wordings).format(many=many)
        return plain(draw.text)
    k.m.draw("request", draw)
    while len(values) < 2: k.m.draw("request", draw)
    order = [tool] + others(k, n_tools - 1)
    r.shuffle(order)
    s = Sample("", [], tools=[t.declared() for t in order])
    calls, found = [], []
    answered = r.random() < 0.5
    for v in values:
        tool.main.value = v
        calls.append((tool.name, tool.arguments()))
        if answered:
            shown, text = result_of(k, tool)
            if tool.topic not in ("weather", "time") or not text.startswith("It is"): text = "For %s, %s" % (v, text[0].lower() + text[1:])
            found.append(((tool.name, shown), text))
    s.turns = [Turn(k.m.say(draw.text), " ".join(t for _, t in found), "", calls, [f for f, _ in found])]
    if r.random() < 0.2: s.system = r.choice(SYSTEMS)
    s.kind = "same"
    return s


def all_params(tool):
    for p in tool.params:
        if p.inner is not None: yield from p.inner
        else: yield p
