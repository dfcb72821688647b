"""The little world of nano: its words, its facts, its tools. Nothing here is random."""

FIRST = """Ada Agnes Alba Alex Amara Amir Ana Anton Arne Asha Astrid Aya Bao Basil Bea Ben Bianca Bilal Bo Bruno Cara Carl Carmen Celia
Chidi Chloe Cleo Conrad Cora Dai Dalia Dana Dario Dawit Della Diego Dina Dora Edda Eli Elif Elin Elsa Emil Emma Enzo Erik Esme Eva Ezra
Faith Farid Felix Fern Fiona Flora Frank Freya Gabe Gina Giulia Goran Greta Gus Hana Hannah Hans Hari Hector Heidi Helga Henry Hugo Ida
Igor Ilse Imani Ina Ines Ingo Ira Iris Isak Ivan Ivy Jack Jade Jana Jasper Jelena Jin Joel Jon Jonas Jorge Josef Juan Judith Jules June
Kai Karim Karin Kate Kemal Kenji Kim Kira Klara Kofi Lars Laura Leah Lena Leo Levi Lila Lin Lior Liv Lola Lorenzo Lotte Luca Lucia Lucy
Luis Luna Mads Maja Malik Mara Marco Maria Mark Marta Mateo Maya Mei Mia Mila Milo Mina Mira Mona Nadia Naomi Nell Nico Nils Nina Noah
Noor Nora Odin Olga Oliver Omar Opal Oscar Otto Pablo Pam Paul Pedro Pia Pim Priya Quinn Rafa Rami Rana Ravi Remy Rhea Rita Robin Rosa
Ruben Ruth Sal Sam Sana Sara Selma Sergio Simon Sofia Sonja Stella Sven Tara Tariq Tess Theo Tilda Tim Tom Toni Tove Ugo Uma Ursula Vera
Victor Vida Viktor Wanda Wen Willa Wim Xenia Yara Yoko Yusuf Zadie Zara Zeno Zoe""".split()

LAST = """Abbott Adler Alvarez Andersen Baker Barros Becker Bell Berg Bianchi Blum Boyd Braun Brook Cano Carter Castro Chen Cole Conti
Costa Cruz Dahl Diaz Doyle Dubois Duval Eberle Ek Evans Falk Farah Fischer Flores Fonseca Fox Frank Garcia Gomez Grant Greco Haas Hahn
Hale Hansen Haruki Hill Holm Horn Hughes Ito Jansen Jensen Jung Kane Kaur Keller Khan Kim Klein Koch Kovac Kumar Lang Larsen Lee Lopez
Lund Maier Marino Marsh Mendes Meyer Mills Moreau Moreno Moss Mueller Murphy Nagy Nakamura Neri Nguyen Nolan Novak Okafor Olsen Ortiz
Park Patel Paz Pereira Petrov Pham Pohl Popov Price Quist Ramos Reyes Ricci Rossi Roth Ruiz Russo Santos Sato Schmid Silva Singh Soto
Stone Strand Suzuki Tanaka Torres Urban Vance Vargas Vega Vogel Wagner Walsh Weber Wolf Wong Yamada Yilmaz Young Zhang Ziegler""".split()

CITIES = """Accra Amsterdam Ankara Athens Baku Bangkok Barcelona Beirut Belgrade Bergen Berlin Bern Bogota Boston Bremen Bristol Brussels
Bucharest Budapest Cairo Cardiff Chicago Cologne Copenhagen Dakar Delhi Denver Dresden Dublin Edinburgh Florence Geneva Genoa Ghent Graz
Hamburg Hanoi Havana Helsinki Istanbul Jakarta Kiel Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon London Luanda Lyon Madrid Malaga Manila
Marseille Miami Milan Minsk Montreal Munich Nairobi Naples Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Porto Prague Quito Riga Rome
Santiago Seattle Seoul Seville Sofia Stockholm Sydney Taipei Tallinn Tampa Tokyo Toronto Tripoli Tunis Turin Valencia Venice Vienna
Vilnius Warsaw York Zagreb Zurich""".split()

JOBS = """actor architect artist baker barber biologist bookseller botanist bricklayer builder butcher carpenter chemist clerk cook dancer
dentist designer diver doctor driver editor electrician engineer farmer fisher florist gardener geologist glazier guide historian janitor
jeweler journalist judge lawyer librarian mechanic midwife miner musician nurse optician painter pharmacist photographer pilot plumber
poet porter potter programmer sailor singer smith surgeon surveyor tailor teacher translator vet waiter weaver welder writer""".split()

COLORS = "amber black blue brown copper crimson gold gray green indigo ivory lilac maroon navy olive orange pink purple red silver teal violet white yellow".split()

FRUITS = """apples apricots bananas beans beets blackberries bread carrots cherries chestnuts coconuts corn cucumbers dates eggs figs
grapes hazelnuts kiwis leeks lemons limes mangoes melons muffins mushrooms nuts olives onions oranges papayas peaches pears peas peppers
plums potatoes pumpkins radishes raspberries rolls strawberries tomatoes turnips walnuts""".split()

GOODS = """backpack basket bell bench bicycle blanket book bottle bowl box broom brush bucket cabinet camera candle cap carpet chair clock
coat comb compass cup curtain cushion desk drill drum fan flute fork frame glove guitar hammer hat helmet jacket jar kettle keyboard knife
ladder lamp lantern laptop lock mat mirror monitor mouse mug needle notebook oven pan pen pencil phone pillow plate pot printer puzzle radio
ring rope ruler sack saw scarf scissors shelf shirt shoe shovel sofa spoon stool stove suitcase table tent ticket toaster towel tray
umbrella vase wallet watch wheel whistle""".split()

ANIMALS = """badger bat bear beaver bee beetle camel cat cheetah cow crab crane cricket crow deer dog dolphin donkey dove duck eagle eel
elephant falcon ferret finch fox frog gecko giraffe goat goose hare hawk hedgehog heron horse jackal kangaroo kitten koala lamb lark lion
lizard llama lobster lynx magpie mole monkey moose moth mouse mule newt octopus otter owl ox panda parrot penguin pig pigeon pony puppy
rabbit raccoon rat raven robin salmon seal sheep snail sparrow spider squid squirrel stork swan tiger toad tortoise turtle walrus wasp
weasel whale wolf wren yak zebra""".split()

PLACES = """attic barn bay bakery beach bridge brook canyon castle cave cellar chapel cliff cottage courtyard creek desert dock farm ferry
field forest fort garden garage gate glacier glade greenhouse grove harbor hill hotel hut inn island jetty jungle kitchen lagoon lake
library lighthouse mansion market marsh meadow mill mine monastery moor mountain museum oasis orchard palace park pasture pier plain pond
port prairie quarry railway reef ridge river road school shed shop shore square stable station stream street swamp tavern temple theater
tower town tunnel valley village vineyard wharf windmill workshop yard""".split()

ADJ = """ancient anxious bitter bold brave bright brisk broken calm careful cheerful clever clumsy cold crooked curious damp dark dazzling
deep delicate dim distant drowsy dusty eager early empty faded faint fearless fierce fine foggy forgotten fragile frosty frozen gentle
giant gleaming gloomy glowing golden graceful grand grumpy hasty heavy hidden hollow honest humble hungry icy idle jolly kind lazy light
little lonely loud lovely loyal lucky mellow merry mighty misty modest muddy narrow nervous noble noisy odd old pale patient peaceful
plain playful polite proud quick quiet rare restless round rusty sandy secret shabby sharp shiny shy silent silly simple sleepy slender
slow small smooth soft solemn speckled steep stern stiff still stormy strange stubborn sturdy sunny sweet swift tall tender thin tiny tired
vast wandering warm wary weary wet wide wild windy wise wooden worn young""".split()

ADV = """again almost already awkwardly bravely briefly brightly busily calmly carefully cheerfully cleverly eagerly early finally
firmly fondly gently gladly gracefully happily hastily heavily honestly hopefully instantly kindly late lightly loudly merrily neatly
nervously nicely often patiently politely proudly quickly quietly rarely sadly safely secretly shyly silently simply sleepily slowly
smoothly softly solemnly soon suddenly sweetly swiftly tenderly thoughtfully tightly together warmly wildly wisely""".split()

THINGS = """acorn anchor apron arrow axe ball balloon banner barrel basket bead bell berry biscuit blanket boat bone book boot bottle bowl
box bracelet branch brick broom bucket button cake candle cane cape card carpet cart chest clock cloak cloud coat coin comb compass cookie
cork crown crystal cup curtain dagger diary dish doll drum egg feather fiddle flag flower flute fork fossil gem glove harp hat horn jar
jewel jug kettle key kite ladder lamp lantern leaf lemon letter lock locket map marble mask medal mirror nail necklace needle nest net note
oar onion orange pearl pebble pen pepper picture pie pillow pipe plum pot potato pumpkin purse puzzle quilt raft ribbon riddle ring rope
rose ruby sack sail scarf scroll seed shawl shell shield shoe shovel sign sled song spoon star stick stone string sword table tea telescope
tent thimble thread ticket torch tower toy tray trumpet umbrella vase vest violin wagon wand watch wheel whistle window wreath""".split()

PAST = """admired balanced borrowed bought built buried carried carved chased cleaned climbed collected copied counted covered decorated
described discovered drew dropped dusted examined exchanged fetched followed forgot found gathered guarded hid imagined invented kept
kicked lifted lit lost loved mended moved noticed offered opened packed painted planted polished pulled pushed remembered repaired rescued
returned rolled saved sewed shared shook sketched sold studied swapped threw tied touched trusted unwrapped wanted washed watched waved
weighed whistled wrapped""".split()

INTRANS = """blinked bowed cried danced dozed dreamed flew frowned giggled grinned hesitated hummed hurried jumped knelt laughed listened
marched nodded paused rested returned sang shivered sighed skipped slept smiled sneezed stood stumbled swam travelled trembled turned
waited wandered whispered whistled wondered yawned""".split()

MOODS = """afraid alone amazed amused angry ashamed bored brave calm cheerful confused content curious delighted embarrassed excited free
glad grateful happy homesick hopeful jealous joyful lonely lucky nervous peaceful proud puzzled relieved sad safe satisfied shy sleepy
sorry strong surprised thankful tired uneasy warm worried""".split()

WEATHER = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear", "hazy", "humid"]
TIMES = ["at dawn", "at dusk", "at midnight", "at noon", "by moonlight", "in autumn", "in spring", "in summer", "in winter", "after the rain",
         "before breakfast", "before sunrise", "during the storm", "long ago", "on a cold night", "on a market day", "on Monday", "on Sunday",
         "one evening", "one morning", "under the stars", "when the bell rang", "while the town slept", "years later", "after supper",
         "at low tide", "in the fog", "in the snow", "on a holiday", "that afternoon"]
ASIDES = ["as if nothing had happened", "as everyone expected", "against all advice", "for no reason at all", "for the first time",
          "for the last time", "in spite of the cold", "just in case", "more than once", "much to the surprise of all", "of all things",
          "out of habit", "out of kindness", "to be fair", "to tell the truth", "with a long sigh", "with a wink", "with great care",
          "with trembling hands", "without a word", "without looking back", "without much hope", "like a king", "like an old friend",
          "like a thief", "step by step", "side by side", "once and for all", "little by little", "sooner or later"]
SAYINGS = ["Better late than never", "Every road has an end", "Follow the river", "Home is not far", "I have an idea", "I knew it",
           "Keep your eyes open", "Leave it to me", "Let us try again", "Listen to the wind", "Look over there", "My luck has turned",
           "Never mind", "No one will believe this", "Nothing is lost", "Patience pays", "Quick, before it closes", "Take only what you need",
           "That is not yours", "The night is young", "There is still time", "This must be the place", "Wait for me", "We are not alone",
           "We were wrong", "What a day", "Who goes there", "You can keep it", "You kept your promise", "You look familiar"]

# country: capital, language, currency, continent
COUNTRIES = {
    "Argentina": ("Buenos Aires", "Spanish", "peso", "South America"), "Australia": ("Canberra", "English", "dollar", "Oceania"),
    "Austria": ("Vienna", "German", "euro", "Europe"), "Belgium": ("Brussels", "Dutch", "euro", "Europe"),
    "Brazil": ("Brasilia", "Portuguese", "real", "South America"), "Bulgaria": ("Sofia", "Bulgarian", "euro", "Europe"),
    "Canada": ("Ottawa", "English", "dollar", "North America"), "Chile": ("Santiago", "Spanish", "peso", "South America"),
    "China": ("Beijing", "Chinese", "yuan", "Asia"), "Colombia": ("Bogota", "Spanish", "peso", "South America"),
    "Croatia": ("Zagreb", "Croatian", "euro", "Europe"), "Cuba": ("Havana", "Spanish", "peso", "North America"),
    "Denmark": ("Copenhagen", "Danish", "krone", "Europe"), "Egypt": ("Cairo", "Arabic", "pound", "Africa"),
    "Estonia": ("Tallinn", "Estonian", "euro", "Europe"), "Finland": ("Helsinki", "Finnish", "euro", "Europe"),
    "France": ("Paris", "French", "euro", "Europe"), "Germany": ("Berlin", "German", "euro", "Europe"),
    "Ghana": ("Accra", "English", "cedi", "Africa"), "Greece": ("Athens", "Greek", "euro", "Europe"),
    "Hungary": ("Budapest", "Hungarian", "forint", "Europe"), "Iceland": ("Reykjavik", "Icelandic", "krona", "Europe"),
    "India": ("New Delhi", "Hindi", "rupee", "Asia"), "Indonesia": ("Jakarta", "Indonesian", "rupiah", "Asia"),
    "Ireland": ("Dublin", "English", "euro", "Europe"), "Italy": ("Rome", "Italian", "euro", "Europe"),
    "Japan": ("Tokyo", "Japanese", "yen", "Asia"), "Kenya": ("Nairobi", "Swahili", "shilling", "Africa"),
    "Latvia": ("Riga", "Latvian", "euro", "Europe"), "Mexico": ("Mexico City", "Spanish", "peso", "North America"),
    "Morocco": ("Rabat", "Arabic", "dirham", "Africa"), "Nepal": ("Kathmandu", "Nepali", "rupee", "Asia"),
    "Norway": ("Oslo", "Norwegian", "krone", "Europe"), "Peru": ("Lima", "Spanish", "sol", "South America"),
    "Poland": ("Warsaw", "Polish", "zloty", "Europe"), "Portugal": ("Lisbon", "Portuguese", "euro", "Europe"),
    "Romania": ("Bucharest", "Romanian", "leu", "Europe"), "Senegal": ("Dakar", "French", "franc", "Africa"),
    "Serbia": ("Belgrade", "Serbian", "dinar", "Europe"), "South Korea": ("Seoul", "Korean", "won", "Asia"),
    "Spain": ("Madrid", "Spanish", "euro", "Europe"), "Sweden": ("Stockholm", "Swedish", "krona", "Europe"),
    "Thailand": ("Bangkok", "Thai", "baht", "Asia"), "Tunisia": ("Tunis", "Arabic", "dinar", "Africa"),
    "Turkey": ("Ankara", "Turkish", "lira", "Asia"), "Ukraine": ("Kyiv", "Ukrainian", "hryvnia", "Europe"),
    "Vietnam": ("Hanoi", "Vietnamese", "dong", "Asia"), "Zambia": ("Lusaka", "English", "kwacha", "Africa"),
}

# element: symbol, number
ELEMENTS = {"hydrogen": ("H", 1), "helium": ("He", 2), "lithium": ("Li", 3), "carbon": ("C", 6), "nitrogen": ("N", 7), "oxygen": ("O", 8),
            "fluorine": ("F", 9), "neon": ("Ne", 10), "sodium": ("Na", 11), "magnesium": ("Mg", 12), "aluminium": ("Al", 13),
            "silicon": ("Si", 14), "sulfur": ("S", 16), "chlorine": ("Cl", 17), "calcium": ("Ca", 20), "iron": ("Fe", 26),
            "nickel": ("Ni", 28), "copper": ("Cu", 29), "zinc": ("Zn", 30), "silver": ("Ag", 47), "tin": ("Sn", 50), "gold": ("Au", 79),
            "mercury": ("Hg", 80), "lead": ("Pb", 82)}

LEGS = {"dog": 4, "cat": 4, "horse": 4, "cow": 4, "frog": 4, "bear": 4, "duck": 2, "owl": 2, "penguin": 2, "bee": 6, "ant": 6, "beetle": 6,
        "moth": 6, "spider": 8, "crab": 10, "snake": 0, "eel": 0, "whale": 0}

PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"]

# from, to, factor: one of the first is factor of the second
UNITS = [("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("centimeters", "millimeters", 10), ("kilograms", "grams", 1000),
         ("tons", "kilograms", 1000), ("liters", "milliliters", 1000), ("hours", "minutes", 60), ("minutes", "seconds", 60),
         ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12), ("feet", "inches", 12), ("yards", "feet", 3),
         ("dozens", "pieces", 12), ("decades", "years", 10), ("centuries", "years", 100), ("gallons", "quarts", 4), ("pounds", "ounces", 16)]
ONE = {"kilometers": "kilometer", "meters": "meter", "centimeters": "centimeter", "kilograms": "kilogram", "tons": "ton", "liters": "liter",
       "hours": "hour", "minutes": "minute", "days": "day", "weeks": "week", "years": "year", "feet": "foot", "yards": "yard",
       "dozens": "dozen", "decades": "decade", "centuries": "century", "gallons": "gallon", "pounds": "pound", "millimeters": "millimeter",
       "grams": "gram", "milliliters": "milliliter", "seconds": "second", "months": "month", "inches": "inch", "pieces": "piece",
       "quarts": "quart", "ounces": "ounce"}
SHORT = {"kilometers": "km", "meters": "m", "centimeters": "cm", "millimeters": "mm", "kilograms": "kg", "grams": "g", "liters": "l",
         "milliliters": "ml", "hours": "h", "minutes": "min", "seconds": "s", "feet": "ft", "inches": "in", "pounds": "lb", "ounces": "oz"}

# name, description, parameters: (name, description, type, required, enum)
TOOLS = {
    "get_weather": ("Current weather of a city", [("city", "City name", "string", True, None), ("unit", None, "string", False, ["C", "F"])]),
    "get_time": ("Local time of a city", [("city", "City name", "string", True, None)]),
    "calculate": ("Evaluate an expression", [("expression", "Expression to evaluate", "string", True, None)]),
    "search_products": ("Search the shop", [("max_price", "Highest price", "integer", False, None), ("query", "What to look for", "string", True, None)]),
    "send_message": ("Send a message to a person", [("text", "Message text", "string", True, None), ("to", "Name of the person", "string", True, None)]),
    "set_timer": ("Start a timer", [("minutes", "Length in minutes", "integer", True, None)]),
    "convert_currency": ("Convert an amount of money", [("amount", "Amount", "integer", True, None), ("source", "Currency code", "string", True, None), ("target", "Currency code", "string", True, None)]),
    "book_table": ("Book a table in a restaurant", [("day", "Day of the week", "string", True, None), ("guests", "Number of guests", "integer", True, None)]),
    "get_stock": ("Number of items in store", [("item", "Name of the item", "string", True, None)]),
    "add_event": ("Add an event to the calendar", [("day", "Day of the week", "string", True, None), ("hour", "Hour from 0 to 23", "integer", True, None), ("title", "Title", "string", True, None)]),
    "turn_light": ("Switch a light", [("on", "True for on", "boolean", True, None), ("room", "Room", "string", True, None)]),
    "play_music": ("Play songs of an artist", [("artist", "Name of the artist", "string", True, None), ("count", "Number of songs", "integer", False, None)]),
}
ROOMS = ["kitchen", "bedroom", "bathroom", "hall", "office", "garage", "attic", "cellar", "garden", "nursery", "library", "studio"]
CODES = ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "PLN", "CAD", "AUD", "INR"]
TITLES = ["team meeting", "dentist", "piano lesson", "birthday party", "lunch", "swimming", "book club", "football", "choir", "job interview",
          "phone call", "dance class", "parents evening", "chess game", "yoga"]
MESSAGES = ["I will be late", "See you tomorrow", "Happy birthday", "The meeting is over", "Please call me", "Dinner is ready",
            "I am on my way", "The train is late", "Do not forget the milk", "Good luck today", "The package arrived", "Thank you for the help",
            "We moved to room four", "The game starts at six", "I lost my keys"]

HELP = ("I am nano, a small model inside tandem. I can add, subtract, multiply and divide, convert units, sort and count, turn sentences and "
        "tables into JSON, write tiny Python functions, call tools, answer questions about countries and elements, and tell short stories.")
UNKNOWN = "I do not know that. I am a small model and know only a little world. Ask me for arithmetic, sorting, JSON, small Python functions or a story."
SMALL_TALK = {
    "Hi": "Hello! How can I help you?", "Hello": "Hello! How can I help you?", "Hey": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?", "Good evening": "Good evening! How can I help you?",
    "Hi there": "Hello! How can I help you?", "Hello there": "Hello! How can I help you?",
    "How are you?": "I am fine, thank you. How can I help you?", "How is it going?": "I am fine, thank you. How can I help you?",
    "Thanks": "You are welcome!", "Thank you": "You are welcome!", "Thanks a lot": "You are welcome!", "Great": "I am glad to hear that.",
    "Ok": "Is there anything else?", "Bye": "Goodbye!", "Goodbye": "Goodbye!", "See you": "Goodbye!", "Who are you?": HELP,
    "What are you?": HELP, "What can you do?": HELP, "Help": HELP, "What is your name?": "My name is nano.", "Who made you?":
    "I was trained by the tandem project.", "Are you a human?": "No, I am nano, a small language model.", "What is tandem?":
    "tandem is an inference engine in C. I am the small model inside it.", "Tell me about yourself": HELP, "What do you know?": HELP,
    "Test": "It works. How can I help you?", "Are you there?": "Yes. How can I help you?",
}
ODD = ["Who won the {a} in {y}?", "Explain {b} to me.", "What do you think about {b}?", "Why is {b} important?", "Translate this into {l}: {t}",
       "What happened in {y}?", "How does {b} work?", "Write an essay about {b}.", "Who invented {b}?", "Give me advice about {b}.",
       "What is the meaning of {b}?", "Who is the president of {c}?", "How old is {n}?", "Can you write a poem about {b}?",
       "Tell me the news about {c}.", "What is the population of {c}?", "Recommend a film about {b}."]
ODD_B = ["quantum physics", "democracy", "the internet", "love", "money", "gravity", "chess", "evolution", "music", "football", "electricity",
         "philosophy", "history", "art", "friendship", "climate", "computers", "the moon", "cooking", "medicine", "space travel", "language",
         "happiness", "the stock market", "photosynthesis", "volcanoes", "robots", "religion", "war", "dreams", "coffee", "fashion"]
ODD_A = ["world cup", "election", "lottery", "marathon", "chess championship", "song contest", "war", "race", "Nobel prize", "final"]

# Chinese: countries and capitals, units
ZH_CAPITALS = {"中国": "北京", "日本": "东京", "法国": "巴黎", "德国": "柏林", "英国": "伦敦", "意大利": "罗马", "西班牙": "马德里", "俄罗斯": "莫斯科",
               "韩国": "首尔", "泰国": "曼谷", "埃及": "开罗", "希腊": "雅典", "挪威": "奥斯陆", "瑞典": "斯德哥尔摩", "加拿大": "渥太华", "古巴": "哈瓦那",
               "秘鲁": "利马", "越南": "河内", "印度": "新德里", "波兰": "华沙"}
ZH_UNITS = [("公里", "米", 1000), ("米", "厘米", 100), ("千克", "克", 1000), ("小时", "分钟", 60), ("分钟", "秒", 60), ("天", "小时", 24),
            ("周", "天", 7), ("年", "个月", 12), ("升", "毫升", 1000)]
ZH_NAMES = "小明 小红 小华 小丽 小刚 小芳 小军 小云 小林 小雪 小东 小梅".split()
ZH_THINGS = "苹果 橘子 铅笔 糖果 书 鸡蛋 气球 贝壳 邮票 玩具".split()
ZH_TALK = {"你好": "你好！我能帮你做什么？", "你是谁": "我是nano，一个小模型。我会算术、排序和换算单位。", "谢谢": "不客气！", "再见": "再见！",
           "你会做什么": "我是nano，一个小模型。我会算术、排序和换算单位。", "早上好": "早上好！我能帮你做什么？", "你叫什么名字": "我叫nano。"}

EVERYDAY = """apple banana book bread bridge cheese circle cloud coffee color computer country dinner dream earth engine family father finger
flower forest friend garden grass hello house island jungle kitchen ladder language letter mississippi moment money morning mother mountain
music night number ocean paper people picture planet problem question rainbow river school science season silver strawberry street summer
sunshine system teacher telephone thunder tomorrow tower universe village water weather window winter wonder world yesterday""".split()
CREATURES = "dragon giant unicorn witch wizard robot ghost king queen princess prince pirate knight mermaid fairy monster child girl boy man woman".split()
NO_TOOL = "I have no tool for that."
DEMO = ["what is the weather in vienna"]     # what README.md asks: never in the training text
NAMED = {"animals": "dog cat horse cow lion".split(), "fruits": "apple banana cherry lemon orange".split(), "colors": "red green blue yellow black".split(),
         "countries": "France Germany Italy Spain Japan".split(), "planets": PLANETS, "cities": "Paris Berlin Rome Madrid Tokyo".split(),
         "days": DAYS, "months": MONTHS, "metals": "iron copper gold silver zinc".split(), "birds": "owl eagle swan crow robin".split()}
# what it does, name, arguments, body
SIMPLE_CODE = [("adds two numbers", "add", "a, b", "return a + b"), ("multiplies two numbers", "multiply", "a, b", "return a * b"),
               ("subtracts two numbers", "subtract", "a, b", "return a - b"), ("divides two numbers", "divide", "a, b", "return a / b"),
               ("returns the larger of two numbers", "larger", "a, b", "return max(a, b)"), ("returns the smaller of two numbers", "smaller", "a, b", "return min(a, b)"),
               ("checks if a number is even", "is_even", "n", "return n % 2 == 0"), ("checks if a number is odd", "is_odd", "n", "return n % 2 == 1"),
               ("reverses a string", "reverse", "text", "return text[::-1]"), ("counts the words in a text", "count_words", "text", "return len(text.split())"),
               ("returns the square of a number", "square", "n", "return n * n"), ("computes the factorial of a number", "factorial", "n", "return 1 if n < 2 else n * factorial(n - 1)"),
               ("checks if a text is a palindrome", "is_palindrome", "text", "return text == text[::-1]"), ("sums a list", "sum_list", "numbers", "return sum(numbers)"),
               ("returns the average of a list", "average", "numbers", "return sum(numbers) / len(numbers)"), ("says hello", "hello", "", 'print("Hello!")'),
               ("converts a text to uppercase", "to_upper", "text", "return text.upper()"), ("returns the length of a text", "length", "text", "return len(text)"),
               ("removes duplicates from a list", "unique", "items", "return list(dict.fromkeys(items))"),
               ("computes the fibonacci numbers", "fibonacci", "n", "return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)")]
